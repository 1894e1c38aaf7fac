// A crew of parked threads that share one piece of work with the caller: capture, digests, verified copies.
// Run() wakes as many as are useful, works along, and returns when every part is done. It allocates nothing; waking costs
// about 30 us, so callers with less than a MiB of work pass `parts` = 1 and nobody is woken.
#ifndef NEVE_BASE_SYNC_CREW_H_
#define NEVE_BASE_SYNC_CREW_H_

#include <cstdint>
#include <memory>

namespace neve::sync {

// Non-owning callable reference: fn(part, worker) for part in [0, parts); worker in [0, threads()).
class PartFn {
 public:
  template <typename F>
  PartFn(F& fn) : object_(&fn), call_([](void* o, uint64_t part, int worker) { (*static_cast<F*>(o))(part, worker); }) {}
  void operator()(uint64_t part, int worker) const { call_(object_, part, worker); }

 private:
  void* object_;
  void (*call_)(void*, uint64_t, int);
};

class Crew {
 public:
  // `helpers` threads beside the caller, fewer when the system refuses them; 0 is allowed. They block all signals, and run
  // at nice 19 when `background`. Not inherited by a fork: in a forked child Run works alone.
  static std::unique_ptr<Crew> Create(int helpers, bool background = false);
  virtual ~Crew() = default;
  virtual int threads() const = 0;  // helpers + 1
  // Calls fn once for each part, parts handed out in ascending order by an atomic counter. One Run at a time; a second
  // caller waits its turn. Thread: any but the crew's own.
  virtual void Run(uint64_t parts, PartFn fn) = 0;
};

// Cores this process may use (sched_getaffinity and the cgroup's quota), at least 1.
int UsableCores();

}  // namespace neve::sync

#endif  // NEVE_BASE_SYNC_CREW_H_
