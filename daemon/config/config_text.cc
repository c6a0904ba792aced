#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "daemon/config/config.h"

namespace memtide {
namespace {

class CollectErrors : public google::protobuf::io::ErrorCollector {
 public:
  explicit CollectErrors(absl::string_view name) : name_(name) {}
  // Protobuf counts lines and columns from 0, editors from 1.
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    absl::StrAppend(&errors_, errors_.empty() ? "" : "\n", name_, ":", line + 1, ":", column + 1,
                    ": ", message);
  }
  const std::string& errors() const { return errors_; }

 private:
  const std::string name_;
  std::string errors_;
};

}  // namespace

absl::StatusOr<v1::NodeConfig> ParseConfigText(const std::string& text, absl::string_view name) {
  CollectErrors collector(name);
  google::protobuf::TextFormat::Parser parser;
  // Without a collector, protobuf would only log the errors.
  parser.RecordErrorsTo(&collector);
  v1::NodeConfig config;
  if (!parser.ParseFromString(text, &config)) {
    return absl::InvalidArgumentError(collector.errors());
  }
  return config;
}

absl::StatusOr<v1::NodeConfig> ReadConfigFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("--config: cannot read \"", path, "\": ", std::strerror(errno)));
  }
  return ParseConfigText(text.str(), path);
}

}  // namespace memtide
