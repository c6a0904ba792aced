// A training process for a test to kill: leases chunks for writing, half by acquiring them and half
// by page faults, reports that on standard output, and waits for the end of standard input.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vector>

#include "client/memtide.h"

namespace {

constexpr uint32_t kChunks = 6;

void Require(int code, const char* what) {
  if (code == MEMTIDE_OK) return;
  fprintf(stderr, "%s: %s\n", what, memtide_last_error());
  exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  memtide_options options = {};
  options.struct_bytes = sizeof(options);
  options.socket_dir = argv[1];
  options.program = "lease_holder";
  options.chunk_bytes = 4 << 20;
  options.device_share_bytes = 32 << 20;
  options.host_share_bytes = 48 << 20;
  options.ssd_share_bytes = 128 << 20;
  memtide_client* client = nullptr;
  Require(memtide_open(&options, &client), "open");
  memtide_properties properties = {};
  properties.struct_bytes = sizeof(properties);
  Require(memtide_get_properties(client, &properties), "properties");
  uint32_t first = 0;
  Require(memtide_allocate(client, MEMTIDE_PARAMETER, kChunks, &first), "allocate");
  std::vector<uint32_t> every_second;
  for (uint32_t i = 0; i < kChunks; i += 2) every_second.push_back(first + i);
  Require(memtide_acquire(client, every_second.data(), every_second.size(), MEMTIDE_WRITE, -1),
          "acquire");
  for (uint32_t i = 0; i < kChunks; ++i) {
    memset(static_cast<char*>(properties.base) + (first + i) * properties.chunk_bytes, 1,
           properties.chunk_bytes);
  }
  puts("holding");
  fflush(stdout);
  char ignored;
  while (read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  return 0;
}
