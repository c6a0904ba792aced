// SessionReport: what a session of the load test says to the program that started it (run.py), a
// line of text at a time on standard output:
//
//   opened                       the session and its job are open
//   at STEP                      the job is at this committed step
//   torn                         a chunk whose writer died was refused
//   error CALL CODE MESSAGE      a call failed
//   wrong MESSAGE                bytes were not those that were written last
//   calls COUNT SLOWEST_MS CALL  since the last such line; once a second at most
//
// Not thread-safe.
#ifndef MEMTIDE_TESTS_LOAD_SESSION_REPORT_H_
#define MEMTIDE_TESTS_LOAD_SESSION_REPORT_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

namespace memtide {

class SessionReport {
 public:
  void Say(const std::string& line);

  // Makes a call, which returns a status code, and returns the code. `message` gives the message of
  // an error.
  template <typename Call, typename Message>
  int Timed(const char* name, Call call, Message message) {
    const auto began = Clock::now();
    const int code = call();
    Count(name, Clock::now() - began);
    if (code != 0) Say("error " + std::string(name) + " " + std::to_string(code) + " " + message());
    return code;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void Count(const char* name, Clock::duration took);

  uint64_t calls_ = 0;
  Clock::duration slowest_{0};
  const char* slowest_call_ = "none";
  Clock::time_point last_said_ = Clock::now();
};

// Gives this process the user and group, without other groups and for good. False: not permitted.
bool BecomeUser(uint32_t uid, uint32_t gid);

// The pace of a session, which the test sets.
void Pause(std::chrono::milliseconds time);

// Whether SIGTERM has come since HandleTermination.
void HandleTermination();
bool MustEnd();

}  // namespace memtide

#endif  // MEMTIDE_TESTS_LOAD_SESSION_REPORT_H_
