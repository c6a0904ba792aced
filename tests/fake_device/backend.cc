// Registers the backend in torch when the library is loaded: allocator, device guard, hooks, and
// the operations. Functions that Python calls are in torch.ops.fake_device.
#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/fake_device/caching_allocator.h"
#include "tests/fake_device/fake_cuda.h"
#include "tests/fake_device/kernels.h"

namespace memtide::fake_device {

const FakeCuda& TheFakeCuda() {
  static const FakeCuda fake = [] {
    const char* const path = std::getenv("MEMTIDE_LIBRARY");
    TORCH_CHECK(path != nullptr, "MEMTIDE_LIBRARY is not set");
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(library != nullptr, dlerror());
    const auto find = [&](auto* function, const char* name) {
      *function = reinterpret_cast<std::decay_t<decltype(*function)>>(dlsym(library, name));
      TORCH_CHECK(*function != nullptr, path, " has no fake CUDA: ", name);
    };
    FakeCuda found;
    find(&found.launch, "memtide_fake_launch");
    find(&found.synchronize, "memtide_fake_synchronize");
    find(&found.malloc, "memtide_fake_malloc");
    find(&found.free, "memtide_fake_free");
    find(&found.memory, "memtide_fake_memory");
    find(&found.error, "memtide_fake_error");
    find(&found.calls, "memtide_fake_calls");
    return found;
  }();
  return fake;
}

void Check(int status) { TORCH_CHECK(status == 0, "CUDA error: ", TheFakeCuda().error(status)); }

namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;

constexpr DeviceType kType = DeviceType::PrivateUse1;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// One device with one stream.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  DeviceType type() const override { return kType; }
  Device exchangeDevice(Device) const override { return getDevice(); }
  Device getDevice() const override { return Device(kType, 0); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  c10::Stream getStream(Device) const override { return TheStream(); }
  c10::Stream getDefaultStream(Device) const override { return TheStream(); }
  c10::Stream getNewStream(Device, int) const override { return TheStream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return TheStream(); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeStream(const c10::Stream&) const override { Check(TheFakeCuda().synchronize()); }
  void synchronizeDevice(DeviceIndex) const override { Check(TheFakeCuda().synchronize()); }

 private:
  c10::Stream TheStream() const { return c10::Stream(c10::Stream::DEFAULT, getDevice()); }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    c10::DataPtr data = TheAllocator()->allocate(size);
    const size_t copied = std::min(size, storage.nbytes());
    if (copied > 0) TheAllocator()->copy_data(data.get(), storage.data(), copied);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

Tensor Empty(IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return Tensor(
      at::detail::empty_generic(size, TheAllocator(), kKeys, c10::dtype_or_default(type), format));
}

Tensor EmptyStrided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> type,
                    std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
  return Tensor(at::detail::empty_strided_generic(size, stride, TheAllocator(), kKeys,
                                                  c10::dtype_or_default(type)));
}

const Tensor& Resize(const Tensor& self, IntArrayRef size, std::optional<at::MemoryFormat>) {
  at::TensorImpl* const tensor = self.unsafeGetTensorImpl();
  const size_t needed =
      at::detail::computeStorageNbytesContiguous(size, self.itemsize(), self.storage_offset());
  if (needed > self.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), needed);
  }
  tensor->set_sizes_contiguous(size);
  return self;
}

Tensor& SetStorage(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size,
                   IntArrayRef stride) {
  at::TensorImpl* const tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(source));
  tensor->set_storage_offset(offset);
  if (stride.size() != size.size()) {
    tensor->set_sizes_contiguous(size);
  } else {
    tensor->set_sizes_and_strides(size, stride);
  }
  return self;
}

Tensor CopyFrom(const Tensor& self, const Tensor& target, bool non_blocking) {
  if (target.numel() > 0) Copy(target, self, non_blocking);
  return target;
}

Tensor CopyFromAndResize(const Tensor& self, const Tensor& target) {
  target.resize_(self.sizes());
  return CopyFrom(self, target, false);
}

at::Scalar LocalScalar(const Tensor& self) {
  const Tensor host = at::empty({}, self.options().device(DeviceType::CPU));
  Copy(host, self, false);
  return host.item();
}

std::tuple<Tensor, Tensor> NativeDropout(const Tensor& input, double probability,
                                         std::optional<bool>) {
  const Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(1 - probability);
  return {input * mask / (1 - probability), mask};
}

std::vector<int64_t> Memory() {
  size_t free = 0, total = 0;
  Check(TheFakeCuda().memory(&free, &total));
  const MemoryUse used = UsedMemory();
  std::vector<int64_t> numbers;
  for (const size_t number : {free, total, used.allocated_bytes, used.reserved_bytes,
                              used.peak_allocated_bytes, used.retries, used.shortages}) {
    numbers.push_back(static_cast<int64_t>(number));
  }
  return numbers;
}

const bool g_registered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kType, TheAllocator());
  return true;
}();
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY(fake_device, m) {
  m.def("synchronize() -> ()", [] { Check(TheFakeCuda().synchronize()); });
  m.def("empty_cache() -> ()", [] { EmptyCache(); });
  // Free and total bytes of the device; of this process allocated and reserved ones, the most that
  // were allocated, allocations that emptied the cache first, and those that failed.
  m.def("memory() -> int[]", &Memory);
  m.def("set_limit(int bytes) -> ()", [](int64_t bytes) { SetLimit(static_cast<size_t>(bytes)); });
  m.def("calls(str name) -> int",
        [](std::string name) { return static_cast<int64_t>(TheFakeCuda().calls(name.c_str())); });
  m.def("seed(int seed) -> ()", [](int64_t seed) { Seed(static_cast<uint64_t>(seed)); });
  m.def("rng_state() -> Tensor", &GeneratorState);
  m.def("set_rng_state(Tensor state) -> ()", [](const Tensor& state) { SetGeneratorState(state); });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&Launch>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &Empty);
  m.impl("empty_strided", &EmptyStrided);
  m.impl("resize_", &Resize);
  m.impl("set_.source_Storage_storage_offset", &SetStorage);
  m.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("view.dtype", &at::native::view_dtype);
  m.impl("unfold", &at::native::unfold);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("_copy_from", &CopyFrom);
  m.impl("_copy_from_and_resize", &CopyFromAndResize);
  m.impl("_local_scalar_dense", &LocalScalar);
  m.impl("native_dropout", &NativeDropout);
  // Torch composes these of others where a backend has none of its own. CUDA has.
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&Launch>());
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::_foreach_", 0) != 0) continue;
    const std::string whole = c10::toString(name);
    if (whole.find("out") != std::string::npos) continue;
    m.impl(whole.c_str(), torch::CppFunction::makeFromBoxedFunction<&Launch>());
  }
}

}  // namespace
}  // namespace memtide::fake_device
