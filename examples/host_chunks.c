/* A program without PyTorch, and without a GPU, that keeps its data in memtide's chunks.
 *
 *   cc host_chunks.c $(pkg-config --cflags --libs memtide) -o host_chunks
 *   ./host_chunks SOCKET_DIR
 *
 * Fills chunks of the daemon's host pool, evicts them to its lowest tier (SSD), and reads them
 * again: the first ones by leases, the rest by page faults, at the same addresses.
 */
#include <memtide.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { kChunks = 8 };

static void check(const char* what, int status) {
  if (status == MEMTIDE_OK) return;
  fprintf(stderr, "host_chunks: %s: %s\n", what, memtide_last_error());
  exit(1);
}

static uint64_t* words_of(memtide_client* client, uint32_t place) {
  void* address = NULL;
  check("memtide_address", memtide_address(client, place, &address));
  return address;
}

static uint64_t word(uint32_t place, size_t at) { return (place + 1) * 2654435761u + at; }

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "host_chunks: usage: host_chunks SOCKET_DIR\n");
    return 2;
  }
  memtide_options options = {0};
  options.struct_bytes = sizeof(options);
  options.socket_dir = argv[1];
  options.program = "host_chunks";
  options.chunk_bytes = 2 << 20;
  memtide_client* client = NULL;
  check("memtide_open", memtide_open(&options, &client));
  const size_t words = options.chunk_bytes / sizeof(uint64_t);

  uint32_t places[kChunks];
  check("memtide_allocate", memtide_allocate(client, MEMTIDE_OTHER, kChunks, &places[0]));
  for (uint32_t i = 0; i < kChunks; ++i) places[i] = places[0] + i;
  for (uint32_t i = 0; i < kChunks; ++i) {
    check("memtide_acquire", memtide_acquire(client, &places[i], 1, MEMTIDE_WRITE, -1));
    uint64_t* const chunk = words_of(client, places[i]);
    for (size_t at = 0; at < words; ++at) chunk[at] = word(places[i], at);
    check("memtide_release", memtide_release(client, &places[i], 1));
  }
  check("memtide_evict", memtide_evict(client, places, kChunks));

  check("memtide_acquire", memtide_acquire(client, places, kChunks / 2, MEMTIDE_READ, -1));
  for (uint32_t i = 0; i < kChunks; ++i) {
    const uint64_t* const chunk = words_of(client, places[i]);
    for (size_t at = 0; at < words; ++at) {
      if (chunk[at] == word(places[i], at)) continue;
      fprintf(stderr, "host_chunks: chunk %u has other bytes at word %zu\n", (unsigned)i, at);
      return 1;
    }
  }
  check("memtide_release", memtide_release(client, places, kChunks / 2));
  check("memtide_free", memtide_free(client, places[0], kChunks));
  memtide_close(client);
  printf("host_chunks: %d chunks written, evicted, and read again: all equal\n", kChunks);
  return 0;
}
