#include "tests/sim/run_in_child.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/check.h"
#include "tests/sim/simulation.h"

namespace memtide::sim {
namespace {

[[noreturn]] void Child(int out, const Config& config, const std::vector<Op>& ops, Fault fault,
                        uint32_t one_in) {
  // A failing check prints to stderr.
  MEMTIDE_CHECK(dup2(out, STDERR_FILENO) == STDERR_FILENO);
  FaultInjector fault_injector(fault, config.seed, one_in);
  const Outcome outcome =
      Simulation::Run(config, ops, fault == Fault::kNone ? nullptr : &fault_injector);
  const std::string& broken = outcome.broken;
  MEMTIDE_CHECK(write(out, broken.data(), broken.size()) == static_cast<ssize_t>(broken.size()));
  _exit(0);
}

}  // namespace

std::string RunInChild(const Config& config, const std::vector<Op>& ops, Fault fault,
                       uint32_t one_in) {
  int ends[2];
  MEMTIDE_CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  MEMTIDE_CHECK(child >= 0);
  if (child == 0) Child(ends[1], config, ops, fault, one_in);
  close(ends[1]);
  std::string said;
  char buffer[4096];
  while (true) {
    const ssize_t count = read(ends[0], buffer, sizeof(buffer));
    if (count > 0) said.append(buffer, static_cast<size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR)) break;
  }
  close(ends[0]);
  int status = 0;
  MEMTIDE_CHECK(waitpid(child, &status, 0) == child);
  const bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return ended_well || !said.empty() ? said : "the process died without a word";
}

}  // namespace memtide::sim
