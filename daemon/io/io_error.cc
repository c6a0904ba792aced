#include "daemon/io/io_error.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace memtide {

std::string ErrnoName(int error) {
  const char* const name = strerrorname_np(error);
  return absl::StrCat(name == nullptr ? "errno" : name, " (",
                      std::generic_category().message(error), ")");
}

absl::Status WriteError(int error, absl::string_view what) {
  const std::string message = absl::StrCat(what, ": ", ErrnoName(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status ReadError(int error, absl::string_view what) {
  const std::string message = absl::StrCat(what, ": ", ErrnoName(error));
  switch (error) {
    // Linux's block layer has several numbers for a failed read: ENODATA for a sector that cannot
    // be read, EILSEQ for a failed integrity check, EREMOTEIO for an error of the target.
    case EIO:
    case EILSEQ:
    case ENODATA:
    case ENXIO:
    case EREMOTEIO:
      return absl::DataLossError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace memtide
