// Faults of the program reach the previous handler. Each case runs in a process of its own.
#include "client/memory/segv_handler.h"

#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace memtide::client {
namespace {

constexpr int kHandled = 42;

char* Inaccessible() {
  return static_cast<char*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

void Write(char* address) { *static_cast<volatile char*>(address) = 1; }

void ExitHandled(int signal) { _exit(signal == SIGSEGV ? kHandled : 1); }

char* expected_address = nullptr;
void ExitHandledIfAddressMatches(int signal, siginfo_t* info, void* context) {
  _exit(signal == SIGSEGV && info->si_addr == expected_address && context != nullptr ? kHandled
                                                                                     : 1);
}

void MakeAccessible(int, siginfo_t* info, void*) { mprotect(info->si_addr, 4096, PROT_WRITE); }

sigjmp_buf way_out;
void JumpOut(int) { siglongjmp(way_out, 1); }

// Like Python's faulthandler: restores the handler before it, reports, and raises the signal again.
struct sigaction before_reporter;
void ReportAndRaise(int signal) {
  sigaction(signal, &before_reporter, nullptr);
  static_cast<void>(!write(STDERR_FILENO, "reported\n", 9));
  raise(signal);
}

struct Installed {
  explicit Installed(void (*handler)(int)) {
    signal(SIGSEGV, handler);
    EXPECT_TRUE(InstallSegvHandler().ok());
  }
};

TEST(SegvHandlerTest, TheDefaultIsDeath) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Installed installed(SIG_DFL);
        Write(Inaccessible());
      },
      testing::KilledBySignal(SIGSEGV), "");
}

TEST(SegvHandlerTest, IgnoringAFaultIsDeathToo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Installed installed(SIG_IGN);
        raise(SIGSEGV);  // A signal that was sent, not a fault: ignored.
        Write(Inaccessible());
      },
      testing::KilledBySignal(SIGSEGV), "");
}

TEST(SegvHandlerTest, APlainHandlerIsCalled) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Installed installed(ExitHandled);
        Write(Inaccessible());
      },
      testing::ExitedWithCode(kHandled), "");
}

TEST(SegvHandlerTest, ASiginfoHandlerReceivesTheAddress) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        struct sigaction action = {};
        action.sa_sigaction = ExitHandledIfAddressMatches;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &action, nullptr);
        (void)InstallSegvHandler();
        expected_address = Inaccessible();
        Write(expected_address);
      },
      testing::ExitedWithCode(kHandled), "");
}

TEST(SegvHandlerTest, AHandlerMayJumpOutAgainAndAgain) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Installed installed(JumpOut);
        char* address = Inaccessible();
        volatile int faults = 0;
        if (sigsetjmp(way_out, 1) != 0) ++faults;
        if (faults < 3) Write(address);
        _exit(kHandled);
      },
      testing::ExitedWithCode(kHandled), "");
}

TEST(SegvHandlerTest, AReporterThatPutsUsBackAndRaisesEndsTheProcessOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The raised signal may be delivered inside the reporter or after it.
  for (const int flags : {SA_NODEFER, 0}) {
    EXPECT_EXIT(
        {
          const Installed installed(SIG_DFL);
          struct sigaction action = {};
          action.sa_handler = ReportAndRaise;
          action.sa_flags = flags;
          sigaction(SIGSEGV, &action, &before_reporter);
          (void)InstallSegvHandler();
          Write(Inaccessible());
        },
        testing::KilledBySignal(SIGSEGV), "^reported\n$");
  }
}

TEST(SegvHandlerTest, AHandlerThatMendsAFaultGetsWhatIsSentLater) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        struct sigaction action = {};
        action.sa_sigaction = MakeAccessible;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &action, nullptr);
        EXPECT_TRUE(InstallSegvHandler().ok());
        Write(Inaccessible());
        raise(SIGSEGV);
        _exit(kHandled);
      },
      testing::ExitedWithCode(kHandled), "");
}

TEST(SegvHandlerTest, InstallingTwiceChangesNothing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Installed installed(ExitHandled);
        (void)InstallSegvHandler();
        Write(Inaccessible());
      },
      testing::ExitedWithCode(kHandled), "");
}

}  // namespace
}  // namespace memtide::client
