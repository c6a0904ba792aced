// What every function of client/memtide.h has around it: status codes, the thread's last error, and
// the end of exceptions. Only allocation can throw, and becomes RESOURCE_EXHAUSTED; and what it
// hands out.
#ifndef MEMTIDE_CLIENT_C_ABI_GUARD_H_
#define MEMTIDE_CLIENT_C_ABI_GUARD_H_

#include <new>
#include <string>

#include "absl/status/status.h"

namespace memtide::client {

// The status as a code; the message of a failure becomes the thread's last error.
int Finish(const absl::Status& status);

// Runs a call's body, which returns a Status.
template <typename Body>
int Guarded(Body body) {
  try {
    return Finish(body());
  } catch (const std::bad_alloc&) {
    return Finish(absl::ResourceExhaustedError("this process is out of memory"));
  }
}

absl::Status NullArgument(const char* name);

// A copy that memtide_free_text frees; with a zero behind it.
absl::Status GiveText(const std::string& text, char** given);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_C_ABI_GUARD_H_
