// ChildProcess: a program that a test starts, exchanges lines with, and kills.
//
// Not thread-safe. The test reads the program's standard output and standard error as one stream.
#ifndef MEMTIDE_TESTS_INTEGRATION_CHILD_PROCESS_H_
#define MEMTIDE_TESTS_INTEGRATION_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace memtide {

class ChildProcess {
 public:
  // `program` is the environment variable with the program's path. Variables in `environment`
  // ("NAME=value") override the test's.
  ChildProcess(const char* program, const std::vector<std::string>& arguments,
               const std::vector<std::string>& environment = {});
  // Kills the program if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Sends a line, and returns the line of the answer; empty if the program has ended.
  std::string Ask(const std::string& line);
  std::string ReadLine();
  // Kills the program (SIGKILL), and returns when it has ended.
  void Kill();
  // Reads the rest of the output, waits until the program ends, and returns its exit status, or 128
  // + the signal that ended it.
  int Wait(std::string* output);

 private:
  pid_t pid_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

}  // namespace memtide

#endif  // MEMTIDE_TESTS_INTEGRATION_CHILD_PROCESS_H_
