// The command line: every field of NodeConfig as a flag, over what --config names.
#ifndef MEMTIDE_DAEMON_CONFIG_FLAGS_H_
#define MEMTIDE_DAEMON_CONFIG_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "memtide/v1/config.pb.h"

namespace memtide {

struct CommandLine {
  // --help or --version: print this and end.
  std::string answer;
  // --list-gpus: print them and end.
  bool list_gpus = false;
  // The file's settings, each replaced by its flag where there is one.
  v1::NodeConfig config;
};

// `arguments`: without the program's name. INVALID_ARGUMENT names the flag; errors of the
// configuration file as in ReadConfigFile.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const std::string& version);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_CONFIG_FLAGS_H_
