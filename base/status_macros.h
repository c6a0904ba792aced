// MEMTIDE_RETURN_IF_ERROR and MEMTIDE_ASSIGN_OR_RETURN, for absl::Status and absl::StatusOr.
#ifndef MEMTIDE_BASE_STATUS_MACROS_H_
#define MEMTIDE_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define MEMTIDE_RETURN_IF_ERROR(expression)                                   \
  do {                                                                        \
    if (::absl::Status memtide_status = (expression); !memtide_status.ok()) { \
      return memtide_status;                                                  \
    }                                                                         \
  } while (false)

#define MEMTIDE_STATUS_CONCAT_(a, b) a##b
#define MEMTIDE_STATUS_CONCAT(a, b) MEMTIDE_STATUS_CONCAT_(a, b)

#define MEMTIDE_ASSIGN_OR_RETURN(target, expression) \
  MEMTIDE_ASSIGN_OR_RETURN_(MEMTIDE_STATUS_CONCAT(memtide_or_, __LINE__), target, expression)

#define MEMTIDE_ASSIGN_OR_RETURN_(temporary, target, expression) \
  auto temporary = (expression);                                 \
  if (!temporary.ok()) return temporary.status();                \
  target = std::move(temporary).value()

#endif  // MEMTIDE_BASE_STATUS_MACROS_H_
