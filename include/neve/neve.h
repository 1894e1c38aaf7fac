/* neve's C interface: the one stable ABI of libneve.so. docs/c-api.md is the way in; this is the contract.
 *
 * 1. Handles are opaque and belong to the caller. neve_<noun>_destroy/close takes the address of the handle and nulls it; a null
 *    handle is accepted. A handle is a number, never used again: one that was destroyed, or is of another kind, is
 *    NEVE_INVALID; one of the parent in a forked child is NEVE_CLOSED. (neve_error, neve_string and neve_reply are plain memory:
 *    destroyed once, not used after.)
 * 2. Errors: every call that can fail returns a neve_code and, when `error` is not null, a handle with the text on failure
 *    (null on success). Destroy it. Nothing throws, aborts or raises a signal. Results (`engine`, `ticket`, ..) are null on failure.
 * 3. Strings: UTF-8, NUL-terminated; those that may hold NUL come with a length. neve_string results are the caller's.
 * 4. Threads: every function may be called from any thread, several in one handle at a time, unless it says otherwise; a handle that
 *    is destroyed while another thread's call is in it lives until that call returns. Neither from a signal's handler. Functions of
 *    the program (log, memory, group) are called on the thread that each names, and never with a lock held that a call needs,
 *    but they must not call neve_engine_* of the same engine. They return; they throw nothing.
 * 5. Structs begin with their own size (set by their INIT macro); fields are only appended, and zero asks for nothing. So a
 *    program that was built with an older neve.h runs, and one built with a newer does as long as it uses no field that this library
 *    does not know: that is NEVE_UNSUPPORTED, not ignored.
 * 6. Memory given to a call is borrowed until it returns. After neve_engine_save returns tensors in host memory may be changed;
 *    for those on a device see neve_save_request. An address need not be aligned. It is read as it is given: one that is not
 *    mapped ends the program, as in memcpy; where CUDA is in use the kind of memory is checked against what the state says.
 */
#ifndef NEVE_NEVE_H_
#define NEVE_NEVE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define NEVE_API __attribute__((visibility("default")))
#else
#define NEVE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Values equal absl::StatusCode. */
typedef enum neve_code {
  NEVE_OK = 0,
  NEVE_INVALID = 3,        /* the call is wrong; nothing changed */
  NEVE_TIMEOUT = 4,        /* the stated deadline passed */
  NEVE_NOT_FOUND = 5,      /* every place was reachable, none has it */
  NEVE_EXHAUSTED = 8,      /* no room; errno may be set */
  NEVE_CLOSED = 9,         /* the engine is closed, or wrong order of calls */
  NEVE_DAMAGED = 11,       /* a checkpoint, but truncated or malformed */
  NEVE_UNSUPPORTED = 12,   /* this build or kind cannot */
  NEVE_INTERNAL = 13,      /* a broken invariant of neve */
  NEVE_UNAVAILABLE = 14,   /* could not reach it; errno may be set */
  NEVE_DATA_LOSS = 15      /* bytes differ from their digest, no other copy */
} neve_code;

typedef struct neve_error neve_error;
typedef struct neve_string neve_string;
typedef struct neve_engine neve_engine;
typedef struct neve_state neve_state;
typedef struct neve_ticket neve_ticket;
typedef struct neve_image neve_image;

/* "0.1.0". The text lives for ever. */
NEVE_API const char* neve_version(void);

/* Of a null handle: NEVE_OK, "", 0. One thread at a time for each error. */
NEVE_API neve_code neve_error_code(const neve_error* error);
NEVE_API const char* neve_error_message(const neve_error* error);   /* lives as long as the handle */
NEVE_API int neve_error_errno(const neve_error* error);             /* 0: none */
NEVE_API void neve_error_destroy(neve_error** error);

/* Of a null handle: "", 0. One thread at a time for each string. */
NEVE_API const char* neve_string_data(const neve_string* string);   /* also NUL-terminated; lives as long as the handle */
NEVE_API size_t neve_string_size(const neve_string* string);
NEVE_API void neve_string_destroy(neve_string** string);

/* level: 0 debug, 1 info, 2 warning, 3 error. The line is valid during the call. NULL: stderr again. Called from any thread, of
 * neve or of the program, several at a time; a thread that is logging at that moment may still call the former one once. */
typedef void (*neve_log_fn)(int level, const char* line, void* context);
NEVE_API void neve_log_set(neve_log_fn fn, void* context);
/* Lines of a lower level are dropped; 4: all. Default: what NEVE_LOG says, else 2. NEVE_INVALID: no such level. */
NEVE_API neve_code neve_log_level_set(int level, neve_error** error);

/* Where neve allocates memory that the program then sees: the bytes of neve_image_tensor_data. allocate gives `bytes` at that
 * alignment (a power of two), or NULL: then the call is NEVE_EXHAUSTED. release gets the same pointer and size back. Both are called
 * on the thread of the call that needs it: neve_image_tensor_data, or the last one that uses the image. NULL for both: malloc again. What
 * was allocated is released by the functions that were set when it was. Slots are shared memory, and no part of this. */
typedef void* (*neve_allocate_fn)(size_t bytes, size_t alignment, void* context);
typedef void (*neve_release_fn)(void* memory, size_t bytes, void* context);
NEVE_API neve_code neve_memory_set(neve_allocate_fn allocate, neve_release_fn release, void* context, neve_error** error);

/* ---- Engine ---- */

/* With world > 1, how the ranks reach each other: a store that all of them have (set and get), or an all-gather. Called on the
 * thread of neve_engine_open, neve_engine_find and neve_engine_agree only, and not at all by a save. Each returns NEVE_OK, or
 * another neve_code with a text added to the reply. */
typedef struct neve_reply neve_reply;   /* lives as long as the function that got it runs */
NEVE_API void neve_reply_add(neve_reply* reply, const void* data, size_t bytes);   /* copied */
typedef int (*neve_group_set_fn)(void* context, const char* name, const void* value, size_t bytes, neve_reply* reply);
/* Adds the value, or nothing and NEVE_NOT_FOUND. Does not wait. */
typedef int (*neve_group_get_fn)(void* context, const char* name, neve_reply* reply);
/* Adds the message of every rank, by rank. */
typedef int (*neve_group_gather_fn)(void* context, const void* mine, size_t bytes, double timeout_s, neve_reply* reply);

/* What a save does that finds no free RAM slot. */
typedef enum neve_on_full { NEVE_ON_FULL_WAIT = 0, NEVE_ON_FULL_SKIP = 1, NEVE_ON_FULL_REPLACE = 2 } neve_on_full;

typedef struct neve_options {
  size_t struct_size;
  const char* folder;          /* job folder; with tiers it only names the job */
  const char* job;             /* NULL: last part of folder */
  const char* const* tiers;    /* tier strings, "file:/nvme/ckpt?every=10"; NULL: ram and file in folder */
  size_t tier_count;
  uint32_t rank, world;
  int on_full;                 /* neve_on_full */
  int64_t incarnation;         /* < 0: found */
  double grace_s;              /* > 0: at SIGTERM the newest save is written to files, within so many seconds; 0: no handler */
  int capture_threads;         /* 0: chosen */
  const char* group;           /* world > 1: "dir:PATH", "static:HOST:PORT,..." (docs/operations.md); or NULL and functions */
  neve_group_set_fn group_set;
  neve_group_get_fn group_get;
  neve_group_gather_fn group_gather;
  void* group_context;
  double group_timeout_s;      /* how long ranks wait for each other; the error names who did not come */
  int replicated;              /* != 0: every rank holds the same state: one a host keeps it in RAM, rank 0 writes it to files, and all
                                * restore from the nearest copy. Stages that a rank has no part in are not due for its tickets */
} neve_options;
#define NEVE_OPTIONS_INIT {sizeof(neve_options), NULL, NULL, NULL, 0, 0, 1, 0, -1, 0.0, 0, NULL, NULL, NULL, NULL, NULL, 300.0, 0}

/* Makes nothing on disk or in RAM; the options are copied. With world > 1 every rank calls it, and waits for the others.
 * NEVE_INVALID, NEVE_UNSUPPORTED (a tier that this build lacks), NEVE_TIMEOUT (names the ranks that did not come), NEVE_UNAVAILABLE,
 * NEVE_EXHAUSTED (a given ram:?bytes= that does not fit; no thread could be started). */
NEVE_API neve_code neve_engine_open(const neve_options* options, neve_engine** engine, neve_error** error);
/* Refuses further calls, finishes what is in flight within the deadline (< 0: none) and destroys the engine, also when an error is
 * reported: the first of any background work. final != 0: the newest save in RAM is persisted first, whatever its cadence. Tickets and
 * images of the engine may be used on. In a forked child: NEVE_CLOSED, and nothing is done. */
NEVE_API neve_code neve_engine_close(neve_engine** engine, int final, double deadline_s, neve_error** error);
/* Without the final save and its error: what is in flight is finished, slots are left for recovery. An engine that a process still has when
 * it exits is not waited for: what was captured is in its slots then. */
NEVE_API void neve_engine_destroy(neve_engine** engine);

/* ---- State: described once per structure ---- */

typedef struct neve_tensors {
  size_t struct_size;
  size_t count;
  const char* names;           /* all names, one after another, no separators */
  const uint32_t* name_bytes;  /* length of each */
  const uint8_t* dtypes;       /* neve_dtype values */
  const uint8_t* ranks;        /* number of dimensions */
  const int64_t* extents;      /* concatenated, in elements */
  const int64_t* strides;      /* concatenated, in elements; NULL: contiguous */
  /* Pieces: tensors that are a box, of shape `extents`, of a larger, logical tensor that several ranks hold together. NULL: none;
   * else one flag a tensor. An empty share is a box with an extent of 0. */
  const uint8_t* pieces;
  const int64_t* global_extents;       /* concatenated exactly as `extents`, ignored where the flag is 0 */
  const int64_t* offsets;
  const char* const* logical_names;    /* NULL, or per tensor NULL (its own name) or a NUL-terminated escaped name */
  const int32_t* devices;              /* NULL: all in host memory; else per tensor < 0 (host memory) or its CUDA device's number */
} neve_tensors;
#define NEVE_TENSORS_INIT {sizeof(neve_tensors), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

typedef enum neve_dtype {
  NEVE_BOOL = 1, NEVE_U8, NEVE_I8, NEVE_F8_E5M2, NEVE_F8_E4M3, NEVE_F8_E8M0, NEVE_F8_E4M3FNUZ, NEVE_F8_E5M2FNUZ,
  NEVE_I16, NEVE_U16, NEVE_F16, NEVE_BF16, NEVE_I32, NEVE_U32, NEVE_F32, NEVE_I64, NEVE_U64, NEVE_F64, NEVE_C64,
  NEVE_C128, NEVE_C32, NEVE_F4_E2M1X2, NEVE_BITS8, NEVE_BITS16, NEVE_QI8, NEVE_QU8, NEVE_QI32
} neve_dtype;

/* Copies all that it is given. tree: JSON root node of docs/format.md, or NULL for a flat state; NEVE_INVALID when it could not be read
 * again. A state may be used by several engines and threads. Repeated names and impossible shapes are found by the first save. */
NEVE_API neve_code neve_state_create(const neve_tensors* tensors, const char* tree, size_t tree_bytes, uint32_t blob_count,
                                     neve_state** state, neve_error** error);
NEVE_API void neve_state_destroy(neve_state** state);   /* saves in flight keep their own hold */

/* ---- Save ---- */

/* What CUDA offers here, in one line: driver, devices, how copies go. NEVE_UNAVAILABLE says what is missing: then saves of tensors on
 * a device fail. Makes no context. */
NEVE_API neve_code neve_devices_describe(neve_string** text, neve_error** error);

typedef struct neve_save_request {
  size_t struct_size;
  uint64_t step;
  const neve_state* state;
  const void* const* addresses;      /* one per tensor, in the memory that the state says */
  const char* values;                /* values text of docs/format.md */
  size_t values_bytes;
  const void* const* blobs;          /* blob_count payloads */
  const size_t* blob_bytes;
  const char* tags_json;             /* NULL, or a flat JSON object of numbers, strings, booleans */
  const char* to;                    /* NULL: due tiers by cadence; else tier names separated by commas */
  double slot_timeout_s;             /* wait for a free slot; < 0: for ever; NEVE_TIMEOUT: nothing was saved or counted */
  /* Of tensors on devices. What their streams were given before this call is saved. Their memory is borrowed until the stage
   * "captured" has ended, reached or failed. */
  const int32_t* stream_devices;     /* CUDA devices, and the program's current stream of each: a CUstream (cudaStream_t), or NULL */
  void* const* streams;              /* for the default stream, as for devices that are not named */
  size_t stream_count;
  int fence;                         /* 0: the call has those streams wait, on the device, until the tensors may be changed.
                                      * 1: it returns at once; see neve_ticket_fence */
  const uint8_t* fenced;             /* NULL, or per tensor 0 where it is changed before the fence: the call then has the streams wait
                                      * for its copy. The same for tensors that share memory */
} neve_save_request;
#define NEVE_SAVE_REQUEST_INIT {sizeof(neve_save_request), 0, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, -1.0, NULL, NULL, 0, 0, NULL}

/* Captures the state and returns; the rest happens in the background. `ticket` may be NULL. NEVE_INVALID: misuse by this very call.
 * NEVE_CLOSED, NEVE_TIMEOUT (slot_timeout_s). All else that goes wrong goes to the ticket, neve_engine_health and neve_engine_close.
 * Calls from several threads are made one after another. */
NEVE_API neve_code neve_engine_save(neve_engine* engine, const neve_save_request* request, neve_ticket** ticket, neve_error** error);
/* Makes and prefaults the slots for such a save (step, tags and to are ignored; values and blobs only by size). Blocking. */
NEVE_API neve_code neve_engine_prepare(neve_engine* engine, const neve_save_request* request, neve_error** error);
/* A save that failed before it got to neve_engine_save on this rank: counted, so that ranks go on to call one save by one number. */
NEVE_API neve_code neve_engine_count_save(neve_engine* engine, neve_error** error);
/* Waits until nothing is in flight. NEVE_TIMEOUT says what still is. deadline_s < 0: none. */
NEVE_API neve_code neve_engine_drain(neve_engine* engine, double deadline_s, neve_error** error);
/* Keeps the step's newest complete save from retention and gc, or (pinned = 0) gives it back. Blocks on files. NEVE_NOT_FOUND. */
NEVE_API neve_code neve_engine_pin(neve_engine* engine, uint64_t step, int pinned, neve_error** error);

/* A ticket outlives its engine. stage: "captured", a tier name, "done", "complete", "complete:<tier>"; NULL: "done". */

/* Blocks until the stage is reached: NEVE_OK; that it failed: its error; NEVE_EXHAUSTED: the save was skipped or replaced; NEVE_TIMEOUT;
 * NEVE_INVALID at once for a stage that is not due. timeout_s < 0: none; 0: does not wait. */
NEVE_API neve_code neve_ticket_wait(const neve_ticket* ticket, const char* stage, double timeout_s, neve_error** error);
typedef enum neve_stage_state {
  NEVE_STAGE_PENDING = 0, NEVE_STAGE_REACHED = 1, NEVE_STAGE_FAILED = 2, NEVE_STAGE_SKIPPED = 3
} neve_stage_state;
/* The stage as it is now; never waits. NEVE_INVALID: not due. */
NEVE_API neve_code neve_ticket_poll(const neve_ticket* ticket, const char* stage, neve_stage_state* state, neve_error** error);
/* The first error of any stage, as code and text; NEVE_OK while there is none. Never waits. */
NEVE_API neve_code neve_ticket_error(const neve_ticket* ticket, neve_error** error);
NEVE_API uint64_t neve_ticket_step(const neve_ticket* ticket);    /* UINT64_MAX: no such ticket */
/* {"step":..,"save_id":"i0001.s000000","stages":{"captured":"reached",...},"error":null|{"code":..,"message":..,"errno":..},
 *  "places":{"file":path}} */
NEVE_API neve_code neve_ticket_describe(const neve_ticket* ticket, neve_string** json, neve_error** error);
/* After a save with fence = 1, before the first call that changes the tensors: has these streams wait, on the device, until they may
 * be changed. The host waits only until the copies were handed to the device. NEVE_TIMEOUT: that took longer, so the save was given up
 * and the tensors may be changed. At once for a state in host memory. */
NEVE_API neve_code neve_ticket_fence(const neve_ticket* ticket, const int32_t* stream_devices, void* const* streams, size_t stream_count,
                                     double timeout_s, neve_error** error);
/* A descriptor for poll(2) and the like: readable at every change, until 8 bytes are read from it (it does not block). Owned by the
 * ticket, never closed by the caller. -1: no such ticket, or no descriptor could be had: then wait or poll. */
NEVE_API int neve_ticket_descriptor(const neve_ticket* ticket);
NEVE_API void neve_ticket_destroy(neve_ticket** ticket);          /* the save goes on */

/* ---- List and restore ---- */

/* {"saves":[...]} as `neve ls --json` prints, but for the ages; newest first. */
NEVE_API neve_code neve_engine_steps(neve_engine* engine, neve_string** json, neve_error** error);
/* The document of docs/operations.md, "Health". Never waits for files or ranks. */
NEVE_API neve_code neve_engine_health(neve_engine* engine, neve_string** json, neve_error** error);
/* One of its counters, by the name in docs/operations.md, "Metrics": "saves_started_count", "capture_bytes_total", .. NEVE_NOT_FOUND. */
NEVE_API neve_code neve_engine_counter(neve_engine* engine, const char* name, uint64_t* value, neve_error** error);

typedef struct neve_find_request {
  size_t struct_size;
  int64_t step;                      /* < 0: the newest complete save */
  int64_t before_incarnation;        /* < 0: no bound; else only saves older than (incarnation, sequence) */
  uint64_t before_sequence;
  const char* allow_missing;         /* NULL, or tier names separated by commas */
  int fallback;                      /* != 0: a save whose header cannot be read is passed over for the next older one */
  const char* take_rank0;            /* of a save of another number of ranks: as for neve_image_global */
  const char* include;               /* of such a save: as for neve_image_global_part */
} neve_find_request;
#define NEVE_FIND_REQUEST_INIT {sizeof(neve_find_request), -1, -1, 0, NULL, 0, NULL, NULL}

/* This rank's own image; of a save of another number of ranks, which every rank must reach all of, the global image. */
NEVE_API neve_code neve_engine_find(neve_engine* engine, const neve_find_request* request, neve_image** image, neve_error** error);

/* All in one: finds a save, checks that it fits, fills memory that is there, verified, and agrees with the other ranks. */
typedef struct neve_restore_request {
  size_t struct_size;
  int64_t step;                      /* < 0: the newest complete save */
  const neve_state* state;           /* what is filled, found by name: dtypes and shapes must be the same; pieces are filled from
                                      * whatever pieces were saved */
  void* const* targets;              /* one per tensor, where the state says, by its strides. What streams of the program do with those on a
                                      * device must have ended (dense ones only; they are filled when the call returns) */
  const char* include;               /* NULL, or glob patterns over names, one a line: only these. NEVE_INVALID: one matches nothing */
  const char* allow_missing;         /* as in neve_find_request */
  const char* take_rank0;
  int fallback;                      /* != 0: where this save turns out damaged, the next older one, and so on */
  int atomic;                        /* != 0: all chunks are verified before a target is touched */
  int partial;                       /* != 0: tensors that the save lacks are left alone, not NEVE_INVALID */
  uint8_t* restored;                 /* NULL, or one byte per tensor: 1 where it was filled */
} neve_restore_request;
#define NEVE_RESTORE_REQUEST_INIT {sizeof(neve_restore_request), -1, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, NULL}

/* image: NULL, or gets the save that was restored: neve_image_step, neve_image_describe ("sources": the bytes by tier), and what else
 * is in it; with NULL the ranks of another world may differ in what the state does not name. With world > 1 every rank calls it, with the
 * same step and flags: all get the same save, or all the same error.
 * NEVE_INVALID: something does not fit, and nothing was written. After another error targets may be partly written, unless `atomic`.
 * NEVE_NOT_FOUND: nothing to restore. NEVE_DATA_LOSS, NEVE_DAMAGED: nothing whole. NEVE_UNAVAILABLE: a tier could not be listed. */
NEVE_API neve_code neve_engine_restore(neve_engine* engine, const neve_restore_request* request, neve_image** image,
                                       neve_error** error);

/* With world > 1, once this rank has read what it wanted from the image that neve_engine_find gave, or failed (code, message): NEVE_OK
 * when every rank has read, else the first rank's error, the same on all. */
NEVE_API neve_code neve_engine_agree(neve_engine* engine, int code, const char* message, neve_error** error);
/* Instead of that: this rank gives up and does not wait; the others are told why. */
NEVE_API neve_code neve_engine_leave(neve_engine* engine, const char* why, neve_error** error);
/* Any file that neve reads: an image, .safetensors, .pt, .npz. Blocks. NEVE_UNSUPPORTED: of another kind. */
NEVE_API neve_code neve_image_open(const char* path, neve_image** image, neve_error** error);
NEVE_API void neve_image_destroy(neve_image** image);             /* images outlive their engine; pointers into them end here */
NEVE_API uint64_t neve_image_step(const neve_image* image);       /* UINT64_MAX: no such image */
/* One save as an object of neve_engine_steps, with "image_bytes", "has_digests" and "sources" (bytes read by tier) added. */
NEVE_API neve_code neve_image_describe(const neve_image* image, neve_string** json, neve_error** error);
NEVE_API const void* neve_image_header(const neve_image* image, size_t* bytes);   /* 8 + JSON; lives as long as the image */

typedef struct neve_ranges {
  size_t struct_size;
  size_t count;
  const uint64_t* offsets;           /* in the image, header included */
  const uint64_t* bytes;             /* logical bytes */
  void* const* targets;
  const int8_t* ranks;               /* NULL: all contiguous; -1: this one is */
  const int64_t* extents;            /* of the strided ones, concatenated, in elements */
  const int64_t* strides;
  const uint64_t* item_bytes;        /* per range; NULL with ranks NULL */
  uint8_t* written;                  /* NULL, or count bytes: 1 where the target was touched */
} neve_ranges;
#define NEVE_RANGES_INIT {sizeof(neve_ranges), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

NEVE_API neve_code neve_image_read(neve_image* image, const neve_ranges* ranges, neve_error** error);
/* Tensors of an image as the user knows them, aliases and permuted ones included: index < neve_image_tensor_count, in the order
 * of the state. Pointers live as long as the image. NEVE_DAMAGED: the header contradicts itself (the count is 0 then). */
typedef struct neve_tensor_info {
  size_t struct_size;
  const char* name;                  /* escaped as docs/format.md says; not NUL-terminated */
  size_t name_bytes;
  uint8_t dtype;                     /* neve_dtype */
  uint8_t rank;
  const int64_t* extents;            /* in elements */
  const int64_t* strides;            /* of the saved tensor, in elements */
  uint64_t bytes;                    /* of all elements, row-major */
  const int64_t* global_extents;     /* NULL: not a piece; else of the logical tensor that it is a box of */
  const int64_t* offsets;            /* of the box in it */
  const char* logical_name;          /* of that tensor, escaped; not NUL-terminated */
  size_t logical_name_bytes;
} neve_tensor_info;
#define NEVE_TENSOR_INFO_INIT {sizeof(neve_tensor_info), NULL, 0, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, 0}
NEVE_API size_t neve_image_tensor_count(neve_image* image);
NEVE_API neve_code neve_image_tensor_describe(neve_image* image, size_t index, neve_tensor_info* info, neve_error** error);
NEVE_API neve_code neve_image_tensor_find(neve_image* image, const char* name, size_t* index, neve_error** error);   /* NEVE_NOT_FOUND */
/* Fills caller's memory, verified: targets[i] takes tensor indexes[i] row-major, or by strides[i] (in elements; strides or
 * strides[i] may be NULL). Not atomic: after an error targets may be partly written. */
NEVE_API neve_code neve_image_tensors_read(neve_image* image, size_t count, const size_t* indexes, void* const* targets,
                                           const int64_t* const* strides, neve_error** error);
/* Let neve allocate: one tensor, row-major, verified, read at the first call. *data belongs to the image and lives as long as it; at a
 * multiple of 64 (see neve_memory_set). NULL for a tensor without elements. */
NEVE_API neve_code neve_image_tensor_data(neve_image* image, size_t index, const void** data, neve_error** error);
/* The values text of the save, as neve_save_request gave it; the payload of blob `number`. NEVE_NOT_FOUND: it has none. */
NEVE_API neve_code neve_image_values(neve_image* image, neve_string** values, neve_error** error);
NEVE_API neve_code neve_image_blob(neve_image* image, uint32_t number, neve_string** payload, neve_error** error);

/* ---- Pieces ---- */

/* The global image of the same save: the images of all its ranks as one, in which each logical tensor stands once, whole, under its
 * logical name. An image like any other, and the caller's to destroy; it may outlive `image`. take_rank0: NULL, or glob patterns
 * over dotted names, one a line, of what rank 0 may speak for. NEVE_DAMAGED: the ranks' pieces contradict each other (names tensor,
 * ranks and boxes). NEVE_UNSUPPORTED: the ranks differ in a plain tensor, a value or the copies of one box (names it and the ranks), or
 * the image was opened by its path. Any thread; one rank alone may call it. */
NEVE_API neve_code neve_image_global(neve_image* image, const char* take_rank0, neve_image** global, neve_error** error);
/* The same for a part of it. include: NULL, or such patterns of all that is wanted: what other places hold is the lowest rank's, and
 * whether the ranks agree there is not asked; "": logical tensors alone. */
NEVE_API neve_code neve_image_global_part(neve_image* image, const char* take_rank0, const char* include, neve_image** global,
                                          neve_error** error);
NEVE_API int neve_image_is_global(const neve_image* image);

typedef struct neve_boxes {
  size_t struct_size;
  size_t count;
  const size_t* tensors;             /* indexes as of neve_image_tensor_describe */
  const int64_t* offsets;            /* concatenated, the rank of its tensor each, in elements */
  const int64_t* extents;
  void* const* targets;
  const int64_t* const* strides;     /* in elements; strides or strides[i] NULL: row-major */
  uint8_t* written;                  /* NULL, or count bytes: 1 where the target was touched */
} neve_boxes;
#define NEVE_BOXES_INIT {sizeof(neve_boxes), 0, NULL, NULL, NULL, NULL, NULL, NULL}

/* Fills caller's memory with boxes of tensors, verified; reads only what they need, each chunk once. A tensor that is a piece is
 * addressed in the coordinates of its logical tensor, and the box must lie in the piece (NEVE_INVALID). Not atomic. */
NEVE_API neve_code neve_image_boxes_read(neve_image* image, const neve_boxes* boxes, neve_error** error);

/* Every chunk in every tier that holds it. */
NEVE_API neve_code neve_image_verify(neve_image* image, neve_error** error);

/* ---- Places: what the command does, for programs ---- */

/* A place is a file, a folder, "file:PATH" or "ram:[JOB]". No engine is needed, and all block. Each gives the JSON document of the
 * command's verb (`json` may be NULL), also beside an error where there was something to tell. NEVE_UNAVAILABLE: it is missing or
 * cannot be read. */

/* {"saves":[..],"notes":[..]}, newest first. NEVE_DAMAGED: what says which job it is cannot be read. */
NEVE_API neve_code neve_place_list(const char* place, neve_string** json, neve_error** error);
/* {"ok","checked_bytes","problems":[..],"notes":[..]}. step < 0: all. NEVE_DATA_LOSS: bytes differ from their digest; NEVE_DAMAGED: the
 * structure is wrong; the text is that of the first problem. */
NEVE_API neve_code neve_place_verify(const char* place, int64_t step, neve_string** json, neve_error** error);
/* {"items":[..]}: writes what killed jobs left in RAM to the job folder or root `to` (NULL: that of the place), or says so only
 * (dry_run != 0). adopt != 0: also images of another uid. */
NEVE_API neve_code neve_place_recover(const char* place, const char* to, int dry_run, int adopt, neve_string** json,
                                      neve_error** error);
/* {"dry_run","bytes","items":[..]}: removes leftovers and slots of dead jobs, and with keep >= 0 all complete saves but the newest
 * `keep`. */
NEVE_API neve_code neve_place_gc(const char* place, int64_t keep, int dry_run, neve_string** json, neve_error** error);

/* ---- Single files ---- */

/* One .safetensors file, atomic and durable when it returns (step, tags, to, slot_timeout_s are ignored). */
NEVE_API neve_code neve_file_save(const char* path, const neve_save_request* request, neve_error** error);
/* Returns once the state is captured; stages "captured", "file", "done". */
NEVE_API neve_code neve_file_save_async(const char* path, const neve_save_request* request, neve_ticket** ticket, neve_error** error);

/* ---- Single files in torch's format ---- */

/* What torch.save would write of an object: the pickle of its structure (protocol 2), and the storages that it names by the
 * keys "0", "1", ... */
typedef struct neve_torch_object {
  size_t struct_size;
  const void* pickle;
  size_t pickle_bytes;
  const void* const* storages;       /* host memory, one address a storage */
  const uint64_t* storage_bytes;
  size_t storage_count;
  uint64_t alignment;                /* of each storage in the file: a power of two, at most 32768 */
} neve_torch_object;
#define NEVE_TORCH_OBJECT_INIT {sizeof(neve_torch_object), NULL, 0, NULL, NULL, 0, 64}

/* A file that torch.load opens, atomic and durable when it returns. */
NEVE_API neve_code neve_torch_file_save(const char* path, const neve_torch_object* object, neve_error** error);
/* Returns once the storages are captured; stages "captured", "file", "done". */
NEVE_API neve_code neve_torch_file_save_async(const char* path, const neve_torch_object* object, neve_ticket** ticket,
                                              neve_error** error);

/* The bytes of such a file, made as they are read, in order. The object is borrowed until the stream is destroyed. One thread. */
typedef struct neve_torch_stream neve_torch_stream;
NEVE_API neve_code neve_torch_stream_create(const neve_torch_object* object, neve_torch_stream** stream, neve_error** error);
/* *bytes: how many were made; less than `size` only at the end. */
NEVE_API neve_code neve_torch_stream_read(neve_torch_stream* stream, void* target, size_t size, size_t* bytes, neve_error** error);
NEVE_API void neve_torch_stream_destroy(neve_torch_stream** stream);

#ifdef __cplusplus
}
#endif

#endif /* NEVE_NEVE_H_ */
