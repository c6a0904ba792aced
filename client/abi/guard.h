// The common parts of all functions of client/memtide.h: status codes, the thread's last error, a
// guard against exceptions, and copies of texts.
//
// The library throws nothing itself; std::bad_alloc of an allocation becomes RESOURCE_EXHAUSTED.
// Thread-safe: the last error is a thread_local.
#ifndef MEMTIDE_CLIENT_ABI_GUARD_H_
#define MEMTIDE_CLIENT_ABI_GUARD_H_

#include <cstddef>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "client/memtide.h"

namespace memtide::client {

// Returns the status code. The message of an error becomes the thread's last error.
int ReportStatus(const absl::Status& status);

// Runs the body of a C function, which returns a Status, and returns its code.
template <typename Body>
int Guarded(Body body) {
  try {
    return ReportStatus(body());
  } catch (const std::bad_alloc&) {
    return ReportStatus(absl::ResourceExhaustedError("this process is out of memory"));
  }
}

// The INVALID_ARGUMENT for a null pointer that the caller passed as `name`.
absl::Status NullArgument(const char* name);
// The same of an array of `count`. None needs no address.
absl::Status CheckArray(const void* array, size_t count, const char* name);

// Sets *given to a zero-terminated copy, which memtide_free_text frees.
absl::Status CopyText(const std::string& text, char** given);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_ABI_GUARD_H_
