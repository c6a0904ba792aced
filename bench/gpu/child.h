// Child: this program again, playing a part in another process. For probes that need two.
//
// It inherits one end of a socket, over which both say single bytes and pass descriptors. Killed,
// if it still runs, when this is destroyed.
#ifndef MEMTIDE_BENCH_GPU_CHILD_H_
#define MEMTIDE_BENCH_GPU_CHILD_H_

#include <sys/types.h>

#include <string>

namespace memtide::bench {

// Over a socket; each blocks until it is done. A peer that ended ends this process, too.
void Say(int socket, char word, int descriptor = -1);
// The word; *descriptor, if given: what came with it, the caller's, or -1.
char Hear(int socket, int* descriptor = nullptr);

class Child {
 public:
  // Runs /proc/self/exe with these arguments, and the socket's number at their end.
  explicit Child(const std::string& part, const std::string& argument = "");
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  int socket() const { return socket_; }
  // By kill -9; returns when it has been waited for.
  void Kill();
  // Waits for its end. True: by itself, with status 0.
  bool Join();

 private:
  int socket_ = -1;
  pid_t pid_ = -1;
};

}  // namespace memtide::bench

#endif  // MEMTIDE_BENCH_GPU_CHILD_H_
