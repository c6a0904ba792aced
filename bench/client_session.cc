#include "bench/client_session.h"

#include <numeric>

#include "base/check.h"

namespace memtide {
namespace {

void Expect(int code, const char* what) {
  MEMTIDE_CHECK(code == MEMTIDE_OK) << what << ": " << memtide_last_error();
}

}  // namespace

ClientSession::ClientSession(const std::string& socket_dir, Bytes chunk) {
  memtide_options options = {};
  options.struct_bytes = sizeof(options);
  options.socket_dir = socket_dir.c_str();
  options.program = "bench";
  options.chunk_bytes = chunk.count();
  Expect(memtide_open(&options, &client_), "memtide_open");
  properties_.struct_bytes = sizeof(properties_);
  Expect(memtide_get_properties(client_, &properties_), "memtide_get_properties");
}

ClientSession::~ClientSession() { memtide_close(client_); }

Places ClientSession::Allocate(uint32_t count) {
  uint32_t first = 0;
  Expect(memtide_allocate(client_, MEMTIDE_OTHER, count, &first), "memtide_allocate");
  Places places(count);
  std::iota(places.begin(), places.end(), first);
  return places;
}

char* ClientSession::At(uint32_t place) const {
  return static_cast<char*>(properties_.base) + place * properties_.chunk_bytes;
}

void ClientSession::Acquire(const Places& places, int access) {
  constexpr int kAsLongAsItTakes = -1;
  Expect(memtide_acquire(client_, places.data(), places.size(), access, kAsLongAsItTakes),
         "memtide_acquire");
}

void ClientSession::Release(const Places& places) {
  Expect(memtide_release(client_, places.data(), places.size()), "memtide_release");
}

void ClientSession::Evict(const Places& places) {
  Expect(memtide_evict(client_, places.data(), places.size()), "memtide_evict");
}

void ClientSession::Flush() { Expect(memtide_flush(client_), "memtide_flush"); }

memtide_stats ClientSession::Stats() const {
  memtide_stats stats = {};
  stats.struct_bytes = sizeof(stats);
  Expect(memtide_get_stats(client_, &stats), "memtide_get_stats");
  return stats;
}

}  // namespace memtide
