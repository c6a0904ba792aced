// ClientSession: a client of the daemon under test, through the public C interface.
//
// It opens the client, allocates chunks, and ends the program if a call fails, since a figure of a
// failed call means nothing. Not thread-safe.
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

  // The most leases that this session holds before it releases the oldest idle ones.
  uint32_t lease_budget() const { return properties_.lease_budget; }
  Places Allocate(uint32_t count);
  char* At(uint32_t place) const;

  void Acquire(const Places& places, int access);
  void Release(const Places& places);
  void Evict(const Places& places);
  // Releases every idle lease.
  void Flush();
  memtide_stats Stats() const;

 private:
  memtide_client* client_ = nullptr;
  memtide_properties properties_ = {};
};

}  // namespace memtide

#endif  // MEMTIDE_BENCH_CLIENT_SESSION_H_
