#include "client/abi/guard.h"

#include <stdlib.h>
#include <string.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "client/memtide.h"

namespace memtide::client {
namespace {

// Each thread has its own message, which a failure of another thread cannot replace.
thread_local std::string last_error;

}  // namespace

int ReportStatus(const absl::Status& status) {
  // A success leaves the message of the last failure, as errno does.
  if (!status.ok()) last_error.assign(status.message().data(), status.message().size());
  return static_cast<int>(status.code());
}

absl::Status NullArgument(const char* name) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
}

absl::Status CheckArray(const void* array, size_t count, const char* name) {
  return array == nullptr && count > 0 ? NullArgument(name) : absl::OkStatus();
}

absl::Status CopyText(const std::string& text, char** given) {
  // memtide_free_text passes the text to free, so it comes from malloc.
  *given = static_cast<char*>(malloc(text.size() + 1));
  if (*given == nullptr) return absl::ResourceExhaustedError("out of memory");
  // The length includes the terminating zero; `text` may have zeros of its own, as a trace has.
  memcpy(*given, text.c_str(), text.size() + 1);
  return absl::OkStatus();
}

}  // namespace memtide::client

extern "C" const char* memtide_last_error(void) { return memtide::client::last_error.c_str(); }
