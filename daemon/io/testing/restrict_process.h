// Takes away from a process what sandboxes and service managers do, to see how it copes. For the
// children that tests make: there is no way back.
#ifndef MEMTIDE_DAEMON_IO_TESTING_RESTRICT_PROCESS_H_
#define MEMTIDE_DAEMON_IO_TESTING_RESTRICT_PROCESS_H_

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace memtide {

// From now on `system_call` fails with `error` when its third argument has all of `flags`.
inline void RefuseSystemCall(uint32_t system_call, uint32_t error, uint32_t flags = 0) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, system_call, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, flags),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, flags, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
  MEMTIDE_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  MEMTIDE_CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

// No capabilities, and no more memory to pin than a ring of io_uring takes (for all processes of
// the user together).
inline void RefusePinning() {
  const rlimit little = {64 << 10, 64 << 10};
  MEMTIDE_CHECK(setrlimit(RLIMIT_MEMLOCK, &little) == 0);
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct nothing[_LINUX_CAPABILITY_U32S_3] = {};
  MEMTIDE_CHECK(syscall(SYS_capset, &header, nothing) == 0);
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_TESTING_RESTRICT_PROCESS_H_
