// Child: runs this program again in another process, for probes that need two.
//
// The child inherits one end of a socket, over which both send single bytes and descriptors. The
// destructor kills the child if it still runs.
#ifndef MEMTIDE_BENCH_GPU_CHILD_H_
#define MEMTIDE_BENCH_GPU_CHILD_H_

#include <sys/types.h>

#include <string>

namespace memtide::bench {

// Send and receive a byte over the socket, and block until that is done. If the peer has ended,
// this process ends, too.
void Say(int socket, char word, int descriptor = -1);
// Returns the byte. Sets *descriptor, if not null, to the descriptor that came with it, which the
// caller owns, or to -1.
char Hear(int socket, int* descriptor = nullptr);
// Whether a byte has come that Hear would return at once.
bool HasHeard(int socket);
// The same as Say and Hear, for a number.
void SayNumber(int socket, double number);
double HearNumber(int socket);

class Child {
 public:
  // Runs /proc/self/exe with these arguments, followed by the socket's number.
  explicit Child(const std::string& part, const std::string& argument = "");
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  int socket() const { return socket_; }
  // Kills the child (SIGKILL), and returns when it has ended.
  void Kill();
  // Waits until the child ends. Returns whether it exited with status 0.
  bool Join();

 private:
  int socket_ = -1;
  pid_t pid_ = -1;
};

}  // namespace memtide::bench

#endif  // MEMTIDE_BENCH_GPU_CHILD_H_
