// ClientSession: a client of the daemon under test, through the C interface that ships.
//
// Thin: opens the client, allocates chunks, and ends the program where a call fails, for a figure
// of a call that failed means nothing. Not thread-safe.
#ifndef MEMTIDE_BENCH_CLIENT_SESSION_H_
#define MEMTIDE_BENCH_CLIENT_SESSION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "client/memtide.h"

namespace memtide {

using Places = std::vector<uint32_t>;

class ClientSession {
 public:
  ClientSession(const std::string& socket_dir, Bytes chunk);
  ~ClientSession();
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

  // Most leases that this session holds without giving the oldest back.
  uint32_t lease_budget() const { return properties_.lease_budget; }
  Places Allocate(uint32_t count);
  char* At(uint32_t place) const;

  void Acquire(const Places& places, int access);
  void Release(const Places& places);
  void Prefetch(const Places& places);
  void Evict(const Places& places);
  // Gives every idle lease back.
  void Flush();
  memtide_stats Stats() const;

 private:
  memtide_client* client_ = nullptr;
  memtide_properties properties_ = {};
};

}  // namespace memtide

#endif  // MEMTIDE_BENCH_CLIENT_SESSION_H_
