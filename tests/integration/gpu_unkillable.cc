// A library to preload into a daemon and its processes (LD_PRELOAD): while the file exists that
// UNKILLABLE_WHILE names, none of them ends by itself or is killed by another. So hangs a process
// whose call of the GPU's driver does not return.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

namespace {

bool NothingEnds() {
  const char* const file = std::getenv("UNKILLABLE_WHILE");
  return file != nullptr && access(file, F_OK) == 0;
}

}  // namespace

extern "C" int kill(pid_t process, int signal) noexcept {
  if (signal == SIGKILL && NothingEnds()) return 0;
  return static_cast<int>(syscall(SYS_kill, process, signal));
}

extern "C" void _exit(int status) {
  // tidy(sleep): the file system could tell when the file is gone, with more code than this.
  while (NothingEnds()) usleep(10000);
  for (;;) syscall(SYS_exit_group, status);
}
