//! The part of neve.h that this program uses, declared by hand, and safe types over it. The structs are those of neve.h, field by field;
//! `struct_size` says which version of them this is, so a newer libneve.so takes them too.
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::fmt;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::{null, null_mut};

mod ffi {
    use super::*;

    #[repr(C)]
    pub struct Options {
        pub struct_size: usize,
        pub folder: *const c_char,
        pub job: *const c_char,
        pub tiers: *const *const c_char,
        pub tier_count: usize,
        pub rank: u32,
        pub world: u32,
        pub on_full: c_int,
        pub incarnation: i64,
        pub grace_s: f64,
        pub capture_threads: c_int,
        pub group: *const c_char,
        pub group_set: *const c_void,
        pub group_get: *const c_void,
        pub group_gather: *const c_void,
        pub group_context: *mut c_void,
        pub group_timeout_s: f64,
        pub replicated: c_int,
    }

    #[repr(C)]
    pub struct Tensors {
        pub struct_size: usize,
        pub count: usize,
        pub names: *const c_char,
        pub name_bytes: *const u32,
        pub dtypes: *const u8,
        pub ranks: *const u8,
        pub extents: *const i64,
        pub strides: *const i64,
        pub pieces: *const u8,
        pub global_extents: *const i64,
        pub offsets: *const i64,
        pub logical_names: *const *const c_char,
        pub devices: *const i32,
    }

    #[repr(C)]
    pub struct SaveRequest {
        pub struct_size: usize,
        pub step: u64,
        pub state: *const c_void,
        pub addresses: *const *const c_void,
        pub values: *const c_char,
        pub values_bytes: usize,
        pub blobs: *const *const c_void,
        pub blob_bytes: *const usize,
        pub tags_json: *const c_char,
        pub to: *const c_char,
        pub slot_timeout_s: f64,
        pub stream_devices: *const i32,
        pub streams: *const *mut c_void,
        pub stream_count: usize,
        pub fence: c_int,
        pub fenced: *const u8,
    }

    #[repr(C)]
    pub struct RestoreRequest {
        pub struct_size: usize,
        pub step: i64,
        pub state: *const c_void,
        pub targets: *const *mut c_void,
        pub include: *const c_char,
        pub allow_missing: *const c_char,
        pub take_rank0: *const c_char,
        pub fallback: c_int,
        pub atomic: c_int,
        pub partial: c_int,
        pub restored: *mut u8,
    }

    extern "C" {
        pub fn neve_error_message(error: *const c_void) -> *const c_char;
        pub fn neve_error_destroy(error: *mut *mut c_void);
        pub fn neve_engine_open(options: *const Options, engine: *mut *mut c_void, error: *mut *mut c_void) -> c_int;
        pub fn neve_engine_close(engine: *mut *mut c_void, last: c_int, deadline_s: f64, error: *mut *mut c_void) -> c_int;
        pub fn neve_engine_destroy(engine: *mut *mut c_void);
        pub fn neve_state_create(
            tensors: *const Tensors, tree: *const c_char, tree_bytes: usize, blob_count: u32, state: *mut *mut c_void,
            error: *mut *mut c_void,
        ) -> c_int;
        pub fn neve_state_destroy(state: *mut *mut c_void);
        pub fn neve_engine_save(
            engine: *mut c_void, request: *const SaveRequest, ticket: *mut *mut c_void, error: *mut *mut c_void,
        ) -> c_int;
        pub fn neve_ticket_wait(ticket: *const c_void, stage: *const c_char, timeout_s: f64, error: *mut *mut c_void) -> c_int;
        pub fn neve_ticket_destroy(ticket: *mut *mut c_void);
        pub fn neve_engine_restore(
            engine: *mut c_void, request: *const RestoreRequest, image: *mut *mut c_void, error: *mut *mut c_void,
        ) -> c_int;
    }
}

pub const NOT_FOUND: c_int = 5;
const F64: u8 = 18; // NEVE_F64

/// A code of neve.h with its text.
#[derive(Debug)]
pub struct Error {
    pub code: c_int,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)
    }
}
impl std::error::Error for Error {}

fn call(function: impl FnOnce(*mut *mut c_void) -> c_int) -> Result<(), Error> {
    let mut error = null_mut();
    let code = function(&mut error);
    if code == 0 {
        return Ok(());
    }
    let message = unsafe { CStr::from_ptr(ffi::neve_error_message(error)) }.to_string_lossy().into_owned();
    unsafe { ffi::neve_error_destroy(&mut error) };
    Err(Error { code, message })
}

/// The structure of a state: vectors of f64 by name.
pub struct State {
    handle: *mut c_void,
    lengths: Vec<usize>,
}

impl State {
    pub fn new(tensors: &[(&str, usize)]) -> Result<State, Error> {
        let names: String = tensors.iter().map(|(name, _)| *name).collect();
        let name_bytes: Vec<u32> = tensors.iter().map(|(name, _)| name.len() as u32).collect();
        let (dtypes, ranks) = (vec![F64; tensors.len()], vec![1u8; tensors.len()]);
        let extents: Vec<i64> = tensors.iter().map(|(_, length)| *length as i64).collect();
        let described = ffi::Tensors {
            struct_size: size_of::<ffi::Tensors>(),
            count: tensors.len(),
            names: names.as_ptr().cast(),
            name_bytes: name_bytes.as_ptr(),
            dtypes: dtypes.as_ptr(),
            ranks: ranks.as_ptr(),
            extents: extents.as_ptr(),
            strides: null(),
            pieces: null(),
            global_extents: null(),
            offsets: null(),
            logical_names: null(),
            devices: null(),
        };
        let mut handle = null_mut();
        call(|error| unsafe { ffi::neve_state_create(&described, null(), 0, 0, &mut handle, error) })?;
        Ok(State { handle, lengths: tensors.iter().map(|(_, length)| *length).collect() })
    }

    fn check(&self, lengths: impl Iterator<Item = usize>) -> Result<(), Error> {
        if lengths.eq(self.lengths.iter().copied()) {
            return Ok(());
        }
        Err(Error { code: 3, message: "the vectors are not as long as the state says".into() })
    }
}

impl Drop for State {
    fn drop(&mut self) {
        unsafe { ffi::neve_state_destroy(&mut self.handle) }
    }
}

/// One asynchronous save. It goes on when this is dropped.
pub struct Ticket {
    handle: *mut c_void,
}

impl Ticket {
    pub fn wait(&self, stage: &str, timeout_s: f64) -> Result<(), Error> {
        let stage = CString::new(stage).expect("a stage's name");
        call(|error| unsafe { ffi::neve_ticket_wait(self.handle, stage.as_ptr(), timeout_s, error) })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        unsafe { ffi::neve_ticket_destroy(&mut self.handle) }
    }
}

pub struct Engine {
    handle: *mut c_void,
    one_thread: PhantomData<*const ()>, // any would do; this program has one
}

impl Engine {
    pub fn open(folder: &str) -> Result<Engine, Error> {
        let folder = CString::new(folder).expect("a path");
        let options = ffi::Options {
            struct_size: size_of::<ffi::Options>(),
            folder: folder.as_ptr(),
            job: null(),
            tiers: null(),
            tier_count: 0,
            rank: 0,
            world: 1,
            on_full: 0,
            incarnation: -1,
            grace_s: 0.0,
            capture_threads: 0,
            group: null(),
            group_set: null(),
            group_get: null(),
            group_gather: null(),
            group_context: null_mut(),
            group_timeout_s: 300.0,
            replicated: 0,
        };
        let mut handle = null_mut();
        call(|error| unsafe { ffi::neve_engine_open(&options, &mut handle, error) })?;
        Ok(Engine { handle, one_thread: PhantomData })
    }

    /// Returns once the vectors may be changed.
    pub fn save(&self, step: u64, state: &State, vectors: &[&[f64]]) -> Result<Ticket, Error> {
        state.check(vectors.iter().map(|vector| vector.len()))?;
        let addresses: Vec<*const c_void> = vectors.iter().map(|vector| vector.as_ptr().cast()).collect();
        let request = ffi::SaveRequest {
            struct_size: size_of::<ffi::SaveRequest>(),
            step,
            state: state.handle,
            addresses: addresses.as_ptr(),
            values: null(),
            values_bytes: 0,
            blobs: null(),
            blob_bytes: null(),
            tags_json: null(),
            to: null(),
            slot_timeout_s: -1.0,
            stream_devices: null(),
            streams: null(),
            stream_count: 0,
            fence: 0,
            fenced: null(),
        };
        let mut handle = null_mut();
        call(|error| unsafe { ffi::neve_engine_save(self.handle, &request, &mut handle, error) })?;
        Ok(Ticket { handle })
    }

    /// Fills the vectors from the newest complete save.
    pub fn restore(&self, state: &State, vectors: &mut [&mut [f64]]) -> Result<(), Error> {
        state.check(vectors.iter().map(|vector| vector.len()))?;
        let targets: Vec<*mut c_void> = vectors.iter_mut().map(|vector| vector.as_mut_ptr().cast()).collect();
        let request = ffi::RestoreRequest {
            struct_size: size_of::<ffi::RestoreRequest>(),
            step: -1,
            state: state.handle,
            targets: targets.as_ptr(),
            include: null(),
            allow_missing: null(),
            take_rank0: null(),
            fallback: 1,
            atomic: 0,
            partial: 0,
            restored: null_mut(),
        };
        call(|error| unsafe { ffi::neve_engine_restore(self.handle, &request, null_mut(), error) })
    }

    /// Writes the newest save to files; dropping alone leaves it in memory.
    pub fn close(mut self) -> Result<(), Error> {
        call(|error| unsafe { ffi::neve_engine_close(&mut self.handle, 1, 60.0, error) })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        unsafe { ffi::neve_engine_destroy(&mut self.handle) }
    }
}
