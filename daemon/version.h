// The release, as --version, InspectNode and memtide_build_info show it.
#ifndef MEMTIDE_DAEMON_VERSION_H_
#define MEMTIDE_DAEMON_VERSION_H_

namespace memtide {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_VERSION_H_
