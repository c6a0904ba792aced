// The command line: every field of NodeConfig but quotas is a flag, which overrides the file of
// --config.
#ifndef MEMTIDE_DAEMON_CONFIG_FLAGS_H_
#define MEMTIDE_DAEMON_CONFIG_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "memtide/v1/config.pb.h"

namespace memtide {

struct CommandLine {
  // Text to print before the daemon exits (--help, --version); empty: none.
  std::string answer;
  // Whether to print the GPUs and exit (--list-gpus).
  bool list_gpus = false;
  // Whether to print what the GPUs do of what memtide relies on, and exit (--ask-gpus).
  bool ask_gpus = false;
  // The file's settings, each replaced by its flag if that is given.
  v1::NodeConfig config;
};

// `arguments` is without the program's name. INVALID_ARGUMENT names the flag. Errors of the
// configuration file are those of ReadConfigFile.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const std::string& version);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_CONFIG_FLAGS_H_
