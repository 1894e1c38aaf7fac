// The engine: saves a training state without holding training up, and brings it back from the nearest place that survived.
//
//   neve::EngineOptions options{.folder = "runs/gpt"};
//   auto engine = neve::Engine::Open(options).value();
//   auto state = neve::DescribeState(tensors, tree, blobs).value();      // once per structure
//   auto ticket = engine->Save({.step = 100, .state = state, .addresses = pointers, .values = values}).value();
//   ticket->Wait("file", 60.0);
//   auto image = engine->Find({}).value();                               // newest complete save
//   image->Read(ranges);                                                 // verified
//
// Threads: an Engine may be used from several threads; Save calls are made one after another. Tickets and images may be used
// from any thread. Nothing here throws. Status codes: base table in docs/operations.md ("errors").
#ifndef NEVE_ENGINE_H_
#define NEVE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "neve/dtype.h"
#include "neve/types.h"

namespace neve {

// ---- Options ----

// One tier of a job, as `TIER:[PLACE][?key=value&...]` says it.
struct TierConfig {
  TierKind kind = TierKind::kFile;
  std::string place;                     // file: the root; the job folder is <place>/<job>
  uint64_t every = 1;                    // due when step % every == 0
  std::optional<uint64_t> keep;          // newest complete saves kept here; none: all
  std::string best_tag;                  // keep besides them the `best_count` best by this tag; "": none
  bool best_is_max = false;
  uint64_t best_count = 0;
  uint64_t rate_bytes_per_s = 0;         // 0: no cap
  double timeout_s = 600;                // of one operation, retries included
  uint64_t slots = 3;                    // ram
  uint64_t bytes = 0;                    // ram: budget for slots of the host's ranks; 0: measured
  uint64_t copies = 1;                   // peer
};
// Values and PLACE are percent-decoded. Invalid: unknown key or value, by name. Unsupported: a tier this build lacks.
absl::StatusOr<TierConfig> ParseTier(std::string_view text);

enum class OnFull : uint8_t { kWait, kSkip, kReplace };   // when no RAM slot is free

// How the ranks of a world of more than one reach each other: one of a place, a store and an all-gather. Used on the caller's
// thread inside Open, Find and Agree only; save() has no part in it.
struct GroupOptions {
  std::string place;                     // "dir:PATH", a folder that all ranks see; "static:HOST:PORT,..." by rank, see docs/operations.md
  // A store that all ranks reach: Set replaces, Get does not wait (nothing there is no error).
  std::function<absl::Status(const std::string& name, std::string_view value)> set;
  std::function<absl::StatusOr<std::optional<std::string>>(const std::string& name)> get;
  // Gives the messages of all ranks, by rank.
  std::function<absl::StatusOr<std::vector<std::string>>(std::string_view mine, double timeout_s)> gather;
  double timeout_s = 300;                // of one gather; the error then names who did not come
};

struct EngineOptions {
  std::string folder;                    // job folder; with `tiers` given it only names the job
  std::string job;                       // "": last part of `folder`
  std::vector<TierConfig> tiers;         // empty: ram, and file with steps directly in `folder`
  uint32_t rank = 0, world = 1;
  OnFull on_full = OnFull::kWait;
  std::optional<uint32_t> incarnation;   // given, else found by listing and claimed
  double grace_s = 0;                    // > 0: SIGTERM persists the newest captured save within it
  int capture_threads = 0;               // beside the caller; 0: usable cores - 1, at most 8
  GroupOptions group;                    // needed when world > 1
  // Every rank holds the same state, as with data parallelism: one rank of each host keeps it in RAM, rank 0 writes the durable tiers, and
  // all restore from the nearest copy. What differs between ranks is rank 0's. The same on all ranks.
  bool replicated = false;
};

// ---- State ----

// Tensors of a state in tree order, as parallel arrays; shapes and strides are concatenated, in elements. Borrowed.
struct TensorTable {
  std::span<const std::string_view> names;   // header names, escaped (docs/format.md), unique
  std::span<const DType> dtypes;
  std::span<const uint8_t> ranks;            // dimensions of each
  std::span<const int64_t> extents;
  std::span<const int64_t> strides;          // empty: all contiguous
  // Pieces: tensors that are a box of a larger, logical one. Empty: none is; else one flag a tensor.
  std::span<const uint8_t> pieces = {};
  std::span<const int64_t> global_extents = {};   // concatenated as `extents` are; looked at where the flag is set
  std::span<const int64_t> offsets = {};
  std::span<const std::string_view> logical_names = {};   // empty, or one a tensor; "": the tensor's own name
  std::span<const int32_t> devices = {};     // < 0: host memory; else that CUDA device's. Empty: all in host memory
};

// The structure of a state, described once and used by every save that has it. Opaque; shared.
class State;
// tree: JSON root node (docs/format.md), "" for a flat state; Invalid when it could not be read again. blob_count: leaves saved
// as `neve.blob.<n>`.
// A piece that does not lie in its global shape: Invalid. A piece is stored on its own, whatever memory it shares.
absl::StatusOr<std::shared_ptr<State>> DescribeState(const TensorTable& tensors, std::string_view tree, uint32_t blob_count);

// What CUDA offers here, in one line: driver, devices, how copies go. Unavailable says what is missing; then saves of tensors on a
// device fail. Makes no context.
absl::StatusOr<std::string> DescribeDevices();

// ---- Saving ----

struct SaveRequest {
  uint64_t step = 0;
  std::shared_ptr<State> state;
  std::span<const void* const> addresses;      // host memory, one a tensor
  std::string_view values;                     // the changing leaves as text (docs/format.md)
  std::span<const std::string_view> blobs;     // blob_count payloads
  Tags tags;
  std::vector<std::string> to;                 // tier names; empty: those whose cadence is due
  double slot_timeout_s = -1;                  // how long to wait for a free slot; < 0: for ever. Timeout: nothing was counted
  // Of tensors on devices only. Their memory is borrowed until the stage "captured" has ended, one way or the other.
  std::span<const DeviceStream> streams;       // the program's current stream of each device; default: its default stream
  // False: Save has those streams wait, on the device, until the tensors may be changed. True: Save returns at once; the tensors may
  // be changed on a stream once Ticket::Fence was called for it.
  bool fence = false;
  std::span<const uint8_t> fenced;             // one a tensor, 0: not kept until the fence, so that Save has the streams wait for
                                               // its copy; the same for tensors that share memory. Empty: all are kept
};

// One asynchronous save. Stages, in order: "captured", the due tiers ("ram", "file", ...), "done", "complete" (and
// "complete:<tier>").
class Ticket {
 public:
  virtual ~Ticket() = default;
  virtual uint64_t step() const = 0;
  virtual SaveId save_id() const = 0;
  // Blocks. OK when reached; the stage's error when failed; Exhausted when the save was skipped or replaced; Timeout; Invalid
  // at once for a stage that is not due. timeout_s < 0: none.
  virtual absl::Status Wait(std::string_view stage, double timeout_s) const = 0;
  virtual std::vector<std::pair<std::string, StageState>> Stages() const = 0;
  virtual absl::Status Error() const = 0;      // the first error, or OK
  // Readable at every change until a byte is read. Owned by the ticket.
  virtual int Descriptor() const = 0;
  // Has the streams wait, on the device, until the tensors may be changed. The host waits only until the copies were handed to the
  // device. Timeout: that took longer; the save is given up, and the tensors may be changed. OK at once for a state in host memory.
  virtual absl::Status Fence(std::span<const DeviceStream> streams, double timeout_s) = 0;
  virtual std::map<std::string, std::string> Places() const = 0;   // tier name -> path of this save's image there
};

// ---- Finding and restoring ----

struct SaveInfo {
  std::string job;
  Uid uid;
  uint64_t step = 0;
  SaveId save;
  uint32_t world = 1;
  bool complete = false;
  std::vector<uint32_t> missing_ranks;
  struct Where {
    std::string place;
    uint64_t bytes = 0;
    bool complete = false;               // all ranks' images are in this tier
  };
  std::map<std::string, Where> tiers;    // by tier name
  uint64_t bytes = 0;                    // of all ranks' images
  int64_t time = 0;                      // seconds since 1970; 0: no record could be read
  Tags tags;
  bool pinned = false;
  std::string reason;                    // why it is not complete, in one line
};
// As an object of JSON: what neve_engine_steps and `neve ls --json` say of a save.
std::string ToJson(const SaveInfo& info);

// Where one piece of an image goes. Contiguous when rank < 0.
struct ReadRange {
  uint64_t offset = 0;                   // in the image, header included
  uint64_t bytes = 0;                    // logical bytes
  void* target = nullptr;
  int rank = -1;                         // strided targets: extents and strides in elements of item_bytes
  const int64_t* extents = nullptr;
  const int64_t* strides = nullptr;
  uint64_t item_bytes = 1;
};

// How the images of all ranks become one: glob patterns over dotted names, each of which also matches what lies below.
struct GlobalOptions {
  std::vector<std::string> take_rank0;   // what rank 0 speaks for where the ranks differ
  // All that is wanted: what other places hold is the lowest rank's, and nobody asks whether the ranks agree there. None: everything.
  // Empty: logical tensors alone.
  std::optional<std::vector<std::string>> include;
};

// One rank's image of one save, in whatever tiers hold it; or a file opened by path.
class Image {
 public:
  virtual ~Image() = default;
  virtual const SaveInfo& info() const = 0;
  // Header bytes (8 + JSON), already verified where a record is there. Lives as long as the image.
  virtual std::string_view header() const = 0;
  virtual uint64_t image_bytes() const = 0;
  virtual bool has_digests() const = 0;  // a file with neither a record nor digests within has none: structure is checked
  // Fills the targets, each chunk from the nearest tier whose digest holds; bad copies are reported and healed. Not atomic:
  // after an error targets may be partly written (`written` marks the ranges that were touched, one byte each, when given).
  // DataLoss: no tier has a good copy of some chunk (names chunk, offset, tiers tried).
  virtual absl::Status Read(std::span<const ReadRange> ranges, std::span<uint8_t> written = {}) = 0;
  // Verifies every chunk in every tier that holds the image; names what is wrong. (verify and `atomic=True`)
  virtual absl::Status VerifyAll() = 0;
  virtual std::map<std::string, uint64_t> Sources() const = 0;   // bytes read by tier so far
  // Whether it is the global image of a save: the images of all its ranks as one, in which each logical tensor stands once, whole,
  // under its logical name. An image like any other.
  virtual bool is_global() const = 0;
  // The global image of the same save. Damaged: the ranks' pieces contradict each other. Unsupported: they differ in a plain tensor,
  // a value or the copies of one box (names it and the ranks), or this is a file opened by its path. Thread: any; not collective.
  virtual absl::StatusOr<std::unique_ptr<Image>> Global(const GlobalOptions& options) = 0;
};

// A tensor of an image as the user knows it: with its true dtype, shape and strides; aliases are tensors like any other.
struct TensorInfo {
  std::string_view name;                 // escaped (docs/format.md)
  DType dtype = DType::kU8;
  std::span<const int64_t> shape, strides;   // in elements; strides are those of the saved tensor
  uint64_t bytes = 0;                    // of all its elements, row-major
  bool piece = false;                    // it is the box at `offset` of a logical tensor of `global_shape`
  std::span<const int64_t> global_shape, offset;
  std::string_view logical_name;         // of that tensor
};
// Where a tensor goes: row-major, or by strides in elements that do not make elements share memory.
struct TensorTarget {
  size_t index = 0;
  void* data = nullptr;
  const int64_t* strides = nullptr;
};
// A box of a tensor: offset and extent in elements, inside its shape; of a piece in those of its logical tensor, inside the box that the
// image holds.
struct BoxTarget {
  size_t index = 0;
  const int64_t* offset = nullptr;
  const int64_t* extent = nullptr;
  void* data = nullptr;
  const int64_t* strides = nullptr;      // of `data`, in elements; null: row-major
};
// The tensors of an image, which it borrows. Calls of Read exclude nothing: any thread.
class ImageTensors {
 public:
  static absl::StatusOr<std::unique_ptr<ImageTensors>> Of(Image* image);   // Damaged: the header contradicts itself
  virtual ~ImageTensors() = default;
  virtual size_t count() const = 0;
  virtual TensorInfo at(size_t index) const = 0;                           // index < count()
  virtual std::optional<size_t> Find(std::string_view name) const = 0;
  // Verified as Image::Read verifies. Invalid: an index or strides that cannot be. Not atomic.
  virtual absl::Status Read(std::span<const TensorTarget> targets) const = 0;
  // The same for boxes; reads only what they need, each chunk once. `written`: empty, or a byte a box, 1 where it was touched.
  virtual absl::Status ReadBoxes(std::span<const BoxTarget> boxes, std::span<uint8_t> written = {}) const = 0;
};

struct FindRequest {
  std::optional<uint64_t> step;          // that step's newest save, else the newest complete save
  std::optional<SaveId> before;          // only saves older than this (fallback)
  std::vector<std::string> allow_missing;   // tier names that may be unreachable
  bool fallback = false;                 // a save whose header cannot be read is passed over for the next older one
  std::vector<std::string> take_rank0;   // of a save of another number of ranks: as in GlobalOptions
  std::optional<std::vector<std::string>> include;   // the same
};

// ---- Engine ----

class Engine {
 public:
  // Checks the options, starts threads, creates nothing on disk or in RAM. Invalid, Unsupported; Exhausted only for a given
  // `bytes` of a ram tier that does not fit. With world > 1 every rank calls it, and they agree on who the job is and which life
  // this is: Timeout names the ranks that did not come; a tier that one rank cannot list is Unavailable on all.
  static absl::StatusOr<std::unique_ptr<Engine>> Open(const EngineOptions& options);
  // Finishes what is in flight, ends the threads, leaves the slots for `recover`.
  virtual ~Engine() = default;

  // Makes, reserves and prefaults the slots for such a state. Blocking (callers use a thread). Exhausted with the numbers.
  virtual absl::Status Prepare(const std::shared_ptr<State>& state, std::span<const void* const> addresses,
                               uint64_t values_bytes, std::span<const uint64_t> blob_bytes) = 0;

  // Captures the state and returns; the tensors may be changed at once. Errors: Invalid (misuse by this call), Closed,
  // Timeout (slot_timeout_s). Everything else goes to the ticket.
  virtual absl::StatusOr<std::shared_ptr<Ticket>> Save(const SaveRequest& request) = 0;
  // Counts a save that did not get as far as Save on this rank (its state could not be described), so that the ranks go on to call
  // the same save by the same number. With one rank nothing happens.
  virtual void CountSave() = 0;

  // Every save that any tier lists, newest first, complete or not.
  virtual absl::StatusOr<std::vector<SaveInfo>> Steps() = 0;
  // NotFound: every tier was listed and none holds a record of this job. DataLoss: records but no complete save, naming what
  // is missing. Unavailable: a tier could not be listed and is not allowed to be missing. After it the engine's own saves
  // continue in a new incarnation.
  // With world > 1 every rank calls it with the same request: all get their image of the same save, the newest that every rank
  // reaches, or all the same error. A save of another number of ranks gives its global image, where every rank reaches all of it.
  virtual absl::StatusOr<std::unique_ptr<Image>> Find(const FindRequest& request) = 0;
  // After a Find with world > 1, when this rank has read what it wanted, or failed: OK when every rank has, else the error of the
  // first that has not, the same on all. With one rank: `mine`.
  virtual absl::Status Agree(const absl::Status& mine) = 0;
  // Instead of Agree: this rank gives up without waiting; the others get Unavailable with `why`.
  virtual void Leave(const std::string& why) = 0;

  virtual absl::Status SetPinned(uint64_t step, bool pinned) = 0;
  // Waits until nothing is in flight. Timeout names what is waited for. deadline_s < 0: none.
  virtual absl::Status Drain(double deadline_s) = 0;
  // `final`: the newest complete save in RAM is also written to each durable tier that lacks it. Frees slots that owe nothing.
  // The first error of any background work, once.
  virtual absl::Status Close(bool final, double deadline_s) = 0;
  virtual std::string HealthJson() const = 0;
};

// ---- Single files ----

// Writes a state as one .safetensors file, atomic and durable when it returns: the old file stays until the new one is whole.
// Stages at most 256 MiB.
absl::Status SaveFile(const std::string& path, const std::shared_ptr<State>& state, std::span<const void* const> addresses,
                      std::string_view values, std::span<const std::string_view> blobs);
// The same, returning once the state is captured in private memory. Stages: "captured", "file", "done".
// A full disk or want of memory is told by the ticket; a path that cannot be written, and misuse, by the call.
absl::StatusOr<std::shared_ptr<Ticket>> SaveFileAsync(const std::string& path, const std::shared_ptr<State>& state,
                                                      std::span<const void* const> addresses, std::string_view values,
                                                      std::span<const std::string_view> blobs);
// What torch.save would write of an object: the pickle of its structure (protocol 2), and the storages that it names by the keys
// "0", "1", ... All borrowed.
struct TorchObject {
  std::string_view pickle;
  std::span<const void* const> storages;     // host memory, one address a storage
  std::span<const uint64_t> storage_bytes;
  uint64_t alignment = 64;                   // of each storage in the file: a power of two, at most 32768
};
// Writes a file that torch.load opens, atomic and durable when it returns: the old file stays until the new one is whole. Stages
// at most 256 MiB beside the pickle.
absl::Status SaveTorchFile(const std::string& path, const TorchObject& object);
// The same, returning once the storages are captured in private memory. Stages: "captured", "file", "done".
// A full disk or want of memory is told by the ticket; a path that cannot be written, and misuse, by the call.
absl::StatusOr<std::shared_ptr<Ticket>> SaveTorchFileAsync(const std::string& path, const TorchObject& object);

// The bytes of such a file, made as they are read: for a caller that writes them somewhere itself. One thread.
class TorchFileStream {
 public:
  // The object is borrowed until the last byte has been read.
  static absl::StatusOr<std::unique_ptr<TorchFileStream>> Open(const TorchObject& object);
  virtual ~TorchFileStream() = default;
  virtual uint64_t bytes() const = 0;        // of the whole file
  virtual uint64_t Read(std::span<std::byte> target) = 0;   // the next bytes; how many: target.size(), less at the end
};

// Opens an image or any .safetensors file; a commit record beside it is used to verify what is read.
absl::StatusOr<std::unique_ptr<Image>> OpenImageFile(const std::string& path);

std::string_view Version();   // "0.1.0"

}  // namespace neve

#endif  // NEVE_ENGINE_H_
