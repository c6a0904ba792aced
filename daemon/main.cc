// memtided: turns flags into a Config, starts the Node, and waits for a reason to end.
//
// Exit status: 0 after SIGTERM, SIGINT or the end of the lifeline; 2 for settings that cannot work;
// 1 for all other errors. It is 1, too, if settings cannot work, or the journal is of another
// version, and jobs wait to be restored: systemd does not restart a service after status 2, and
// closes the jobs' descriptors then.
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "daemon/config/config.h"
#include "daemon/config/flags.h"
#include "daemon/device/open_cuda.h"
#include "daemon/log.h"
#include "daemon/node.h"
#include "daemon/recovery/persisted_state.h"
#include "daemon/recovery/saved_jobs.h"
#include "daemon/systemd.h"

namespace memtide {
namespace {

constexpr std::chrono::seconds kDrainPatience{10};
constexpr int kExitFailed = 1;
constexpr int kExitBadSettings = 2;

// Sets a umask, as files are for this user only unless their mode is set. Disables core dumps,
// which would contain tokens and tensors. Raises the limit of descriptors, since each region and
// store is one.
void PrepareProcess() {
  umask(S_IRWXG | S_IRWXO);
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  signal(SIGPIPE, SIG_IGN);  // A write to a client that has ended returns an error instead.
  signal(SIGXFSZ, SIG_IGN);  // So does a write beyond the limit of a file's size (ulimit -f).
}

// Blocks SIGTERM and SIGINT in this thread and those that it starts later, and returns a descriptor
// from which they are read.
int SignalDescriptor() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  MEMTIDE_CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
  const int fd = signalfd(-1, &signals, SFD_CLOEXEC);
  MEMTIDE_CHECK(fd >= 0) << "signalfd: " << std::strerror(errno);
  return fd;
}

bool LifelineEnded(int fd) {
  char ignored[64];
  const ssize_t got = read(fd, ignored, sizeof(ignored));
  return got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN);
}

// Waits for a reason to end, and returns it. While the engine makes progress, notifies systemd's
// watchdog.
std::string WaitForEnd(const Config& config, const Node& node, int signal_fd) {
  std::array<pollfd, 2> watched = {};
  watched[0] = {signal_fd, POLLIN, 0};
  watched[1] = {config.lifeline_fd.value_or(-1), POLLIN, 0};
  const absl::optional<Duration> watchdog = WatchdogPeriod();
  // Notifies twice in each period of the watchdog. The engine ticks far more often than that.
  const int timeout_ms =
      watchdog ? static_cast<int>(
                     std::chrono::milliseconds(
                         std::chrono::duration_cast<std::chrono::milliseconds>(*watchdog / 2))
                         .count())
               : -1;
  uint64_t heartbeats = 0;
  for (;;) {
    const int count = poll(watched.data(), watched.size(), timeout_ms);
    MEMTIDE_CHECK(count >= 0 || errno == EINTR) << "poll: " << std::strerror(errno);
    if (watchdog && node.Heartbeats() != heartbeats) {
      heartbeats = node.Heartbeats();
      NotifySystemd("WATCHDOG=1");
    }
    if (count <= 0) continue;
    if (watched[0].revents != 0) {
      signalfd_siginfo info = {};
      if (read(signal_fd, &info, sizeof(info)) == sizeof(info)) {
        return absl::StrCat("signal ", info.ssi_signo, " from pid ", info.ssi_pid);
      }
    }
    if (watched[1].revents != 0 && LifelineEnded(watched[1].fd)) return "the lifeline ended";
  }
}

absl::StatusOr<Config> Configure(const v1::NodeConfig& proto, const PersistedMemory& persisted) {
  MEMTIDE_ASSIGN_OR_RETURN(Machine machine, ThisMachine(persisted));
  machine.gpu_uuids = GpuUuids;
  machine.inspect_gpu = InspectGpu;
  return Validate(proto, machine);
}

// Returns the exit status: `bad_settings`, if the settings cannot work.
int Serve(const Config& config, PersistedState persisted, int bad_settings) {
  // Signals are blocked before the node starts threads, which inherit the mask.
  const int signal_fd = SignalDescriptor();
  absl::StatusOr<std::unique_ptr<Node>> node = Node::Start(config, std::move(persisted));
  if (!node.ok()) {
    spdlog::error("cannot start: {}", std::string(node.status().message()));
    return absl::IsInvalidArgument(node.status()) ? bad_settings : kExitFailed;
  }
  // Units that need this one start now, when clients can connect.
  NotifySystemd("READY=1\nSTATUS=serving");
  const std::string reason = WaitForEnd(config, **node, signal_fd);
  spdlog::info("ending: {}", reason);
  NotifySystemd("STOPPING=1\nSTATUS=draining");
  if (const absl::Status drained = (*node)->Drain(kDrainPatience); !drained.ok()) {
    spdlog::warn("not drained: {}", std::string(drained.message()));
  }
  node->reset();
  spdlog::info("ended");
  return 0;
}

// Prints the lines about GPUs. A machine without a GPU is no error.
int PrintGpus(const absl::StatusOr<std::vector<std::string>>& gpus) {
  if (!gpus.ok() && !absl::IsNotFound(gpus.status())) {
    std::fprintf(stderr, "memtided: %s\n", std::string(gpus.status().message()).c_str());
    return kExitFailed;
  }
  for (size_t i = 0; gpus.ok() && i < gpus->size(); ++i) std::printf("%s\n", (*gpus)[i].c_str());
  return 0;
}

int Main(int argc, char** argv) {
  PrepareProcess();
  // The daemon starts its own program like this for all that needs CUDA.
  if (argc == 3) {
    if (const absl::optional<int> status = RunGpuProcess(argv[1], argv[2])) return *status;
  }
  // Memory that the last daemon left is measured before the settings are checked, as it counts as
  // free.
  PersistedState persisted = TakePersistedState();
  const int bad_settings = persisted.memory.empty() ? kExitBadSettings : kExitFailed;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const absl::StatusOr<CommandLine> line =
      ParseCommandLine(arguments, absl::StrCat(kVersion, " (", CudaOfThisBuild(), ")"));
  if (!line.ok()) {
    std::fprintf(stderr, "memtided: %s\n", std::string(line.status().message()).c_str());
    return bad_settings;
  }
  if (!line->answer.empty()) {
    std::fputs(line->answer.c_str(), stdout);
    return 0;
  }
  if (line->list_gpus) return PrintGpus(ListGpus());
  if (line->ask_gpus) return PrintGpus(AskGpus());
  if (absl::IsFailedPrecondition(persisted.unreadable)) {
    std::fprintf(
        stderr,
        "memtided: %s. The jobs that it names wait, untouched: to resume them, install the "
        "memtided that wrote it; `systemctl stop memtided` ends them\n",
        std::string(persisted.unreadable.message()).c_str());
    return kExitFailed;
  }
  // A directory that is not there yet, or cannot be read, is the node's to judge: it reads again.
  absl::StatusOr<SavedJobs> saved =
      LoadSavedJobs({line->config.ssd_dirs().begin(), line->config.ssd_dirs().end()});
  if (saved.ok()) persisted.saved = *std::move(saved);
  const absl::StatusOr<Config> config = Configure(line->config, Measure(persisted));
  if (!config.ok()) {
    std::fprintf(stderr, "memtided: %s\n", std::string(config.status().message()).c_str());
    // The GPU may be available after a restart: while a machine boots, its module is loaded late.
    return absl::IsUnavailable(config.status()) ? kExitFailed : bad_settings;
  }
  StartLogging(config->log_level);
  return Serve(*config, std::move(persisted), bad_settings);
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) { return memtide::Main(argc, argv); }
