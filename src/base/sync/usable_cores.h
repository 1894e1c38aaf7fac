// How many cores the cgroup lets this process use. Apart from crew.h so that tests can give it a made-up file tree.
#ifndef NEVE_BASE_SYNC_USABLE_CORES_H_
#define NEVE_BASE_SYNC_USABLE_CORES_H_

#include <string>
#include <string_view>

namespace neve::sync {

// The least CPU quota, in whole cores rounded up, of the groups that `membership` (the text of /proc/self/cgroup) names
// and of the groups above them, read below `mount` (/sys/fs/cgroup): cpu.max of version 2, cpu.cfs_quota_us of version 1.
// 0: no limit. A group that is not there, as in a container that sees only its own part, is passed over.
int CgroupCores(std::string_view membership, const std::string& mount);

}  // namespace neve::sync

#endif  // NEVE_BASE_SYNC_USABLE_CORES_H_
