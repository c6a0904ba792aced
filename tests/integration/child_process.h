// ChildProcess: a program that a test starts, speaks with by lines, and kills.
//
// Not thread-safe. Its standard output and standard error are one stream, ours to read.
#ifndef MEMTIDE_TESTS_INTEGRATION_CHILD_PROCESS_H_
#define MEMTIDE_TESTS_INTEGRATION_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace memtide {

class ChildProcess {
 public:
  // `program`: the environment variable with its path. `environment` ("NAME=value") goes before the
  // test's own.
  ChildProcess(const char* program, const std::vector<std::string>& arguments,
               const std::vector<std::string>& environment = {});
  // Kills it, should it still run.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Says a line, and returns the line that is answered: empty when the program has ended.
  std::string Ask(const std::string& line);
  std::string ReadLine();
  // Kills it (SIGKILL), and returns when it is gone.
  void Kill();
  // Reads what is left of its output, waits for its end, and returns the exit status, or 128 + the
  // signal that ended it.
  int Wait(std::string* output);

 private:
  pid_t pid_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

}  // namespace memtide

#endif  // MEMTIDE_TESTS_INTEGRATION_CHILD_PROCESS_H_
