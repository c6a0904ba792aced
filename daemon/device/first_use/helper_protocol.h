// The packets between the daemon and its helper process (remote/packet.h). A packet is text,
// with at most one descriptor beside it. The daemon asks, and each question has one answer: "ok",
// "ok NUMBER" or "error TEXT". Only "work" has two.
//
//   import SIZE + descriptor   opens the memory, checks kFromDaemon in its first byte, and writes
//                              kFromHelper there
//   open HANDLE                the same with a legacy CUDA IPC handle, in hexadecimal
//   work                       keeps the GPU busy until the next question: "ok" once it is, and
//                              another answer when it is no longer
//   rest                       does nothing, and so ends "work"
//   map                        maps and unmaps memory while work runs on other memory, and the
//                              daemon copies; "ok" with the longest time of a mapping in
//                              microseconds
#ifndef MEMTIDE_DAEMON_DEVICE_FIRST_USE_HELPER_PROTOCOL_H_
#define MEMTIDE_DAEMON_DEVICE_FIRST_USE_HELPER_PROTOCOL_H_

#include <cstddef>

namespace memtide {

inline constexpr unsigned char kFromDaemon = 0x5A, kFromHelper = 0xA5;
// The size of memory that is exported or mapped.
inline constexpr size_t kAskedBytes = 2 << 20;

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_FIRST_USE_HELPER_PROTOCOL_H_
