#include "daemon/log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <string>
#include <utility>

namespace memtide {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// These libraries log mostly mistakes of clients, and no client may fill the log: debug only.
void LogFromGrpc(gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); }
void LogFromProtobuf(google::protobuf::LogLevel, const char*, int, const std::string& message) {
  spdlog::debug("protobuf: {}", message);
}

}  // namespace

void StartLogging(LogLevel level) {
  auto logger = spdlog::stderr_logger_mt("memtided");
  logger->set_level(ToSpdlog(level));
  // systemd sets JOURNAL_STREAM where stderr is its journal, which adds the time itself.
  logger->set_pattern(std::getenv("JOURNAL_STREAM") != nullptr ? "%l: %v"
                                                               : "%Y-%m-%dT%H:%M:%S.%e%z %l: %v");
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(LogFromGrpc);
  google::protobuf::SetLogHandler(LogFromProtobuf);
}

}  // namespace memtide
