#include "bazel/message_mutator.h"

#include <google/protobuf/stubs/logging.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

// Defined by libFuzzer, and by bazel/fuzz_driver.cc.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace memtide {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Random = std::minstd_rand;

constexpr int kMostDepth = 8;

// Protobuf would log each string that is not UTF-8.
google::protobuf::LogHandler* const g_protobufs_own_handler =
    google::protobuf::SetLogHandler(nullptr);

uint64_t RandomNumber(Random& random) {
  static constexpr uint64_t kEdges[] = {0,
                                        1,
                                        2,
                                        4095,
                                        4096,
                                        2 << 20,
                                        uint64_t{1} << 30,
                                        uint64_t{1} << 31,
                                        uint64_t{1} << 32,
                                        (uint64_t{1} << 63) - 1,
                                        uint64_t{1} << 63,
                                        std::numeric_limits<uint64_t>::max()};
  switch (random() % 4) {
    case 0:
      return kEdges[random() % (sizeof(kEdges) / sizeof(kEdges[0]))];
    case 1:
      return random() % 16;
    case 2:
      return random() % 5000;
    default:
      return uint64_t{random()} << 32 | random();
  }
}

double RandomReal(Random& random) {
  static constexpr double kEdges[] = {0,
                                      -0.0,
                                      1,
                                      -1,
                                      1e-300,
                                      1e300,
                                      std::numeric_limits<double>::infinity(),
                                      std::numeric_limits<double>::quiet_NaN()};
  return random() % 2 == 0 ? kEdges[random() % 8] : std::ldexp(random() % 1000, -10);
}

// Protobuf reads strings only if they are UTF-8, which most are to be, and bytes whatever they are.
std::string RandomText(Random& random, bool is_string) {
  static constexpr size_t kLengths[] = {0, 1, 8, 16, 32, 36, 255, 256, 257, 4096};
  std::string text(kLengths[random() % 10], 'a');
  const bool any = !is_string || random() % 16 == 0;
  for (char& c : text) c = static_cast<char>(any ? random() : ' ' + random() % 95);
  return text;
}

void Mutate(Message* message, Random& random, int depth);

// Sets a field that is not repeated, or adds to one that is.
void SetOrAdd(Message* message, const FieldDescriptor* field, Random& random, int depth) {
  const Reflection* const reflection = message->GetReflection();
  const bool adds = field->is_repeated();
#define MEMTIDE_SET(Type, value) \
  adds ? reflection->Add##Type(message, field, value) : reflection->Set##Type(message, field, value)
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      MEMTIDE_SET(Int32, static_cast<int32_t>(RandomNumber(random)));
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      MEMTIDE_SET(Int64, static_cast<int64_t>(RandomNumber(random)));
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      MEMTIDE_SET(UInt32, static_cast<uint32_t>(RandomNumber(random)));
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      MEMTIDE_SET(UInt64, RandomNumber(random));
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      MEMTIDE_SET(Double, RandomReal(random));
      break;
    case FieldDescriptor::CPPTYPE_FLOAT:
      MEMTIDE_SET(Float, static_cast<float>(RandomReal(random)));
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      MEMTIDE_SET(Bool, random() % 2 == 0);
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      // Protobuf 3 keeps numbers that it does not know.
      MEMTIDE_SET(EnumValue, static_cast<int>(random() % (field->enum_type()->value_count() + 2)));
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      MEMTIDE_SET(String, RandomText(random, field->type() == FieldDescriptor::TYPE_STRING));
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      Mutate(adds ? reflection->AddMessage(message, field)
                  : reflection->MutableMessage(message, field),
             random, depth + 1);
      break;
  }
#undef MEMTIDE_SET
}

void MutateRepeated(Message* message, const FieldDescriptor* field, Random& random, int depth) {
  const Reflection* const reflection = message->GetReflection();
  const int size = reflection->FieldSize(*message, field);
  switch (random() % 5) {
    case 0:
      if (size > 0) reflection->RemoveLast(message, field);
      break;
    case 1:
      if (size > 1) reflection->SwapElements(message, field, 0, static_cast<int>(random() % size));
      break;
    case 2:
      if (size > 0 && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        const int at = static_cast<int>(random() % size);
        Mutate(reflection->MutableRepeatedMessage(message, field, at), random, depth + 1);
      }
      break;
    default: {
      // Limits of batches are some thousands.
      const bool many = depth == 0 && random() % 64 == 0;
      for (uint64_t count = many ? random() % 5000 : 1; count > 0; --count) {
        SetOrAdd(message, field, random, depth + (many ? kMostDepth : 0));
      }
    }
  }
}

void Mutate(Message* message, Random& random, int depth) {
  const auto* const descriptor = message->GetDescriptor();
  if (descriptor->field_count() == 0 || depth > kMostDepth) return;
  for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
    const FieldDescriptor* const field =
        descriptor->field(static_cast<int>(random() % descriptor->field_count()));
    if (random() % 8 == 0) {
      message->GetReflection()->ClearField(message, field);
    } else if (field->is_repeated()) {
      MutateRepeated(message, field, random, depth);
    } else {
      SetOrAdd(message, field, random, depth);
    }
  }
}

}  // namespace

void MutateFields(Message* message, unsigned seed) {
  Random random(seed);
  Mutate(message, random, 0);
}

size_t MutateMessage(Message* message, uint8_t* data, size_t size, size_t most, unsigned seed) {
  Random random(seed);
  random.discard(1);
  if (random() % 4 == 0) return LLVMFuzzerMutate(data, size, most);
  message->ParsePartialFromArray(data, static_cast<int>(size));
  Mutate(message, random, 0);
  const std::string bytes = message->SerializePartialAsString();
  if (bytes.size() > most) return size;
  std::memcpy(data, bytes.data(), bytes.size());
  return bytes.size();
}

}  // namespace memtide
