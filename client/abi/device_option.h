// The option `device` of memtide_open: which device of the node lends the device share.
#ifndef MEMTIDE_CLIENT_ABI_DEVICE_OPTION_H_
#define MEMTIDE_CLIENT_ABI_DEVICE_OPTION_H_

#include <string>

#include "absl/status/status.h"
#include "memtide/v1/session.pb.h"

namespace memtide::client {

// Names the device in the request; an empty text names none. INVALID_ARGUMENT: the text has no form
// that memtide.h lists. FAILED_PRECONDITION: "cuda:N" of a GPU that this process does not see.
absl::Status SetDevice(const std::string& device, v1::OpenRequest* request);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_ABI_DEVICE_OPTION_H_
