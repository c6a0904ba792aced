// The beginning of all C functions on a client: a null client is refused, and so is a forked child,
// which has no leases.
#ifndef MEMTIDE_CLIENT_ABI_CLIENT_CALL_H_
#define MEMTIDE_CLIENT_ABI_CLIENT_CALL_H_

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "client/abi/guard.h"
#include "client/client.h"

namespace memtide::client {

// PlaceId is a bare uint32_t, so an array of one is an array of the other.
static_assert(sizeof(PlaceId) == sizeof(uint32_t) && alignof(PlaceId) == alignof(uint32_t), "");
using Places = absl::Span<const PlaceId>;
inline Places PlacesAt(const uint32_t* places, size_t count) {
  return {reinterpret_cast<const PlaceId*>(places), count};
}

// `body` takes a Client& and returns a Status.
template <typename Body>
int WithClient(memtide_client* client, Body body) {
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument("client");
    // memtide_client is declared and never defined.
    return body(*reinterpret_cast<Client*>(client));
  });
}

// `body` takes a LeaseClient& and returns a Status.
template <typename Body>
int WithLeases(memtide_client* client, Body body) {
  return WithClient(client, [&](Client& opened) -> absl::Status {
    MEMTIDE_RETURN_IF_ERROR(opened.CheckProcess());
    return body(*opened.leases());
  });
}

// `body` takes a LeaseClient& and the places, and returns a Status. An empty list may have any
// address, also NULL.
template <typename Body>
int WithPlaces(memtide_client* client, const uint32_t* places, size_t count, Body body) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    MEMTIDE_RETURN_IF_ERROR(CheckArray(places, count, "places"));
    return body(leases, PlacesAt(places, count));
  });
}

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_ABI_CLIENT_CALL_H_
