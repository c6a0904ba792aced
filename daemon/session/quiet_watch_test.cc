#include "daemon/session/quiet_watch.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace memtide {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kUid = 1000;

// A process that does nothing until it is killed.
class Process {
 public:
  Process() : pid_(fork()) {
    while (pid_ == 0) pause();
  }
  ~Process() { Kill(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  OwnedFd Descriptor() const { return OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0))); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
    pid_ = 0;
  }

 private:
  pid_t pid_;
};

class QuietWatchTest : public testing::Test {
 protected:
  std::vector<uint64_t> Take(Instant at) {
    std::vector<uint64_t> sessions;
    for (const ClientQuiet& quiet : watch_.Take(at)) sessions.push_back(quiet.session.value());
    return sessions;
  }

  QuietWatch watch_{/*max_per_uid=*/2};
  const Instant start_{std::chrono::hours(1)};
};

using Sessions = std::vector<uint64_t>;

TEST_F(QuietWatchTest, ASessionIsQuietAMomentAfterTheExitOfItsProcess) {
  Process process;
  watch_.Add({SessionId(7), kUid, process.Descriptor()}, start_);
  EXPECT_EQ(Take(start_ + milliseconds(500)), Sessions{});
  EXPECT_EQ(watch_.next(start_ + milliseconds(500)), QuietWatch::kPeriod);
  process.Kill();
  EXPECT_EQ(Take(start_ + milliseconds(600)), Sessions{});
  EXPECT_EQ(watch_.next(start_ + milliseconds(600)), QuietWatch::kAfterExit);
  EXPECT_EQ(Take(start_ + milliseconds(699)), Sessions{});
  EXPECT_EQ(Take(start_ + milliseconds(700)), Sessions{7});
  EXPECT_FALSE(watch_.next(start_ + milliseconds(700)).has_value());
}

TEST_F(QuietWatchTest, AProcessThatStaysIsWaitedForSoLongAndNoLonger) {
  Process process;
  watch_.Add({SessionId(7), kUid, process.Descriptor()}, start_);
  EXPECT_EQ(Take(start_ + kQuietWithin - milliseconds(1)), Sessions{});
  const std::vector<ClientQuiet> quiet = watch_.Take(start_ + kQuietWithin);
  ASSERT_EQ(quiet.size(), 1u);
  EXPECT_TRUE(quiet[0].process_lives);
}

TEST_F(QuietWatchTest, WithoutAPidfdTheProcessCountsAsOneThatStays) {
  watch_.Add({SessionId(7), kUid, OwnedFd()}, start_);
  EXPECT_EQ(watch_.next(start_), kQuietWithin);
  EXPECT_EQ(Take(start_ + kQuietWithin - milliseconds(1)), Sessions{});
  EXPECT_EQ(Take(start_ + kQuietWithin), Sessions{7});
}

TEST_F(QuietWatchTest, AFloodOfOneUserShortensNoOtherUsersWait) {
  Process process;
  watch_.Add({SessionId(1), kUid, process.Descriptor()}, start_);
  for (uint64_t n = 2; n <= 6; ++n) {
    watch_.Add({SessionId(n), kUid + 1, process.Descriptor()}, start_);
  }
  EXPECT_EQ(Take(start_), (Sessions{2, 3, 4}));
}

}  // namespace
}  // namespace memtide
