/* neve's C interface: the one stable ABI of libneve.so.
 *
 * 1. Handles are opaque. neve_<noun>_destroy/close takes the address of the handle and nulls it; a null handle is accepted.
 * 2. Errors: every call that can fail returns a neve_code and, when `error` is not null, a handle with the text on failure.
 *    Destroy it. Nothing throws or aborts.
 * 3. Strings: UTF-8. Those that may hold NUL come with a length. neve_string results are owned by the caller.
 * 4. Threads: an engine, a ticket, an image may be used from any thread; a handle is destroyed by one, when no call is in it.
 *    No thread of neve calls into the program, but for the log hook.
 * 5. Structs begin with their own size (set by their INIT macro); fields are only appended.
 * 6. Memory given to a call is borrowed until it returns. After neve_engine_save returns tensors in host memory may be changed;
 *    for those on a device see neve_save_request.
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

NEVE_API const char* neve_version(void);

NEVE_API neve_code neve_error_code(const neve_error* error);
NEVE_API const char* neve_error_message(const neve_error* error);   /* lives as long as the handle */
NEVE_API int neve_error_errno(const neve_error* error);             /* 0: none */
NEVE_API void neve_error_destroy(neve_error** error);

NEVE_API const char* neve_string_data(const neve_string* string);   /* also NUL-terminated */
NEVE_API size_t neve_string_size(const neve_string* string);
NEVE_API void neve_string_destroy(neve_string** string);

/* level: 0 debug, 1 info, 2 warning, 3 error. The line is valid during the call. NULL: stderr again. May be called from any
 * thread of neve. */
typedef void (*neve_log_fn)(int level, const char* line, void* context);
NEVE_API void neve_log_set(neve_log_fn fn, void* context);

/* ---- Engine ---- */

/* With world > 1, how the ranks reach each other: a store that all of them have (set and get), or an all-gather. Called on the
 * thread of neve_engine_open, neve_engine_find and neve_engine_agree only, and not at all by a save. Each returns NEVE_OK, or
 * another neve_code with a text added to the reply. */
typedef struct neve_reply neve_reply;
NEVE_API void neve_reply_add(neve_reply* reply, const void* data, size_t bytes);   /* copied */
typedef int (*neve_group_set_fn)(void* context, const char* name, const void* value, size_t bytes, neve_reply* reply);
/* Adds the value, or nothing and NEVE_NOT_FOUND. Does not wait. */
typedef int (*neve_group_get_fn)(void* context, const char* name, neve_reply* reply);
/* Adds the message of every rank, by rank. */
typedef int (*neve_group_gather_fn)(void* context, const void* mine, size_t bytes, double timeout_s, neve_reply* reply);

typedef struct neve_options {
  size_t struct_size;
  const char* folder;          /* job folder; with tiers it only names the job */
  const char* job;             /* NULL: last part of folder */
  const char* const* tiers;    /* tier strings, "file:/nvme/ckpt?every=10"; NULL: ram and file in folder */
  size_t tier_count;
  uint32_t rank, world;
  int on_full;                 /* 0 wait, 1 skip, 2 replace */
  int64_t incarnation;         /* < 0: found */
  double grace_s;              /* 0: no SIGTERM handler */
  int capture_threads;         /* 0: chosen */
  const char* group;           /* world > 1: "dir:PATH", a folder that all ranks see; or NULL and functions */
  neve_group_set_fn group_set;
  neve_group_get_fn group_get;
  neve_group_gather_fn group_gather;
  void* group_context;
  double group_timeout_s;      /* how long ranks wait for each other; the error names who did not come */
} neve_options;
#define NEVE_OPTIONS_INIT {sizeof(neve_options), NULL, NULL, NULL, 0, 0, 1, 0, -1, 0.0, 0, NULL, NULL, NULL, NULL, NULL, 300.0}

NEVE_API neve_code neve_engine_open(const neve_options* options, neve_engine** engine, neve_error** error);
/* final != 0: the newest save in RAM is persisted first. Then destroys the engine, also when an error is reported. */
NEVE_API neve_code neve_engine_close(neve_engine** engine, int final, double deadline_s, neve_error** error);
/* Without finishing: what is in flight is finished, slots are left for recovery. */
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

/* tree: JSON root node of docs/format.md, or NULL for a flat state. NEVE_INVALID when it could not be read again. */
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

NEVE_API neve_code neve_engine_save(neve_engine* engine, const neve_save_request* request, neve_ticket** ticket, neve_error** error);
/* Makes and prefaults the slots for such a save (step, tags and to are ignored; values and blobs only by size). Blocking. */
NEVE_API neve_code neve_engine_prepare(neve_engine* engine, const neve_save_request* request, neve_error** error);
/* A save that failed before it got to neve_engine_save on this rank: counted, so that ranks go on to call one save by one number. */
NEVE_API neve_code neve_engine_count_save(neve_engine* engine, neve_error** error);
NEVE_API neve_code neve_engine_drain(neve_engine* engine, double deadline_s, neve_error** error);
NEVE_API neve_code neve_engine_pin(neve_engine* engine, uint64_t step, int pinned, neve_error** error);

/* stage: "captured", a tier name, "done", "complete", "complete:<tier>". timeout_s < 0: none. */
NEVE_API neve_code neve_ticket_wait(const neve_ticket* ticket, const char* stage, double timeout_s, neve_error** error);
/* {"step":..,"save_id":"i0001.s000000","stages":{"captured":"reached",...},"error":null|{"code":..,"message":..,"errno":..},
 *  "places":{"file":path}} */
NEVE_API neve_code neve_ticket_describe(const neve_ticket* ticket, neve_string** json, neve_error** error);
/* After a save with fence = 1, before the first call that changes the tensors: has these streams wait, on the device, until they may
 * be changed. The host waits only until the copies were handed to the device. NEVE_TIMEOUT: that took longer, so the save was given up
 * and the tensors may be changed. At once for a state in host memory. */
NEVE_API neve_code neve_ticket_fence(const neve_ticket* ticket, const int32_t* stream_devices, void* const* streams, size_t stream_count,
                                     double timeout_s, neve_error** error);
NEVE_API int neve_ticket_descriptor(const neve_ticket* ticket);   /* readable at every change; owned by the ticket */
NEVE_API void neve_ticket_destroy(neve_ticket** ticket);          /* the save goes on */

/* ---- List and restore ---- */

/* {"saves":[...]} as `neve ls --json` prints, but for the ages; newest first. */
NEVE_API neve_code neve_engine_steps(neve_engine* engine, neve_string** json, neve_error** error);
NEVE_API neve_code neve_engine_health(neve_engine* engine, neve_string** json, neve_error** error);

typedef struct neve_find_request {
  size_t struct_size;
  int64_t step;                      /* < 0: the newest complete save */
  int64_t before_incarnation;        /* < 0: no bound; else only saves older than (incarnation, sequence) */
  uint64_t before_sequence;
  const char* allow_missing;         /* NULL, or tier names separated by commas */
  int fallback;                      /* != 0: a save whose header cannot be read is passed over for the next older one */
  const char* take_rank0;            /* of a save of another number of ranks: as for neve_image_global */
} neve_find_request;
#define NEVE_FIND_REQUEST_INIT {sizeof(neve_find_request), -1, -1, 0, NULL, 0, NULL}

/* This rank's own image; of a save of another number of ranks, which every rank must reach all of, the global image. */
NEVE_API neve_code neve_engine_find(neve_engine* engine, const neve_find_request* request, neve_image** image, neve_error** error);
/* With world > 1, once this rank has read what it wanted from the image that neve_engine_find gave, or failed (code, message): NEVE_OK
 * when every rank has read, else the first rank's error, the same on all. */
NEVE_API neve_code neve_engine_agree(neve_engine* engine, int code, const char* message, neve_error** error);
/* Instead of that: this rank gives up and does not wait; the others are told why. */
NEVE_API neve_code neve_engine_leave(neve_engine* engine, const char* why, neve_error** error);
/* Any image or .safetensors file. */
NEVE_API neve_code neve_image_open(const char* path, neve_image** image, neve_error** error);
NEVE_API void neve_image_destroy(neve_image** image);
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
/* ---- Pieces ---- */

/* The global image of the same save: the images of all its ranks as one, in which each logical tensor stands once, whole, under its
 * logical name. An image like any other, and the caller's to destroy; it may outlive `image`. take_rank0: NULL, or glob patterns
 * over dotted names, one a line, of what rank 0 may speak for. NEVE_DAMAGED: the ranks' pieces contradict each other (names tensor,
 * ranks and boxes). NEVE_UNSUPPORTED: the ranks differ in a plain tensor or a value (names it and the ranks), or the image was opened
 * by its path. Any thread; one rank alone may call it. */
NEVE_API neve_code neve_image_global(neve_image* image, const char* take_rank0, neve_image** global, neve_error** error);
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
