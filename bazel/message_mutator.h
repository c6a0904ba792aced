// Mutations of protobuf messages for fuzz targets: random bytes almost never are a nested message,
// so fields are changed by reflection, and the message is serialized again.
//
// A target defines LLVMFuzzerCustomMutator, which libFuzzer and bazel/fuzz_driver.cc call, with
// MutateMessage. One of four mutations changes the bytes instead, as a client may send any.
#ifndef MEMTIDE_BAZEL_MESSAGE_MUTATOR_H_
#define MEMTIDE_BAZEL_MESSAGE_MUTATOR_H_

#include <google/protobuf/message.h>

#include <cstddef>
#include <cstdint>

namespace memtide {

// Changes a few fields of the message, which may be empty.
void MutateFields(google::protobuf::Message* message, unsigned seed);

// Parses `size` bytes as the message, as far as they are one, mutates it, and writes it back.
// Returns its size, at most `most`. `message` is of the type that the bytes are to be.
size_t MutateMessage(google::protobuf::Message* message, uint8_t* data, size_t size, size_t most,
                     unsigned seed);

}  // namespace memtide

#endif  // MEMTIDE_BAZEL_MESSAGE_MUTATOR_H_
