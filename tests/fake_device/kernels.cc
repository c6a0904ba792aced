#include "tests/fake_device/kernels.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/fake_device/fake_cuda.h"

namespace memtide::fake_device {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

at::Generator& TheGenerator() {
  static at::Generator generator = at::detail::createCPUGenerator();
  return generator;
}

bool IsOnBackend(const Tensor& tensor) { return tensor.defined() && tensor.is_privateuseone(); }

// A value with each tensor in it, at any depth of lists, replaced.
IValue Replaced(const IValue& value, const std::function<Tensor(const Tensor&)>& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& each : value.toTensorVector()) list.push_back(replace(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& each : value.toOptionalTensorVector()) {
      list.push_back(each ? std::optional<Tensor>(replace(*each)) : std::nullopt);
    }
    return list;
  }
  return value;
}

void AppendTensors(const IValue& value, std::vector<Tensor>* tensors) {
  Replaced(value, [tensors](const Tensor& each) {
    tensors->push_back(each);
    return each;
  });
}

// A device argument of this backend, replaced.
IValue OnDevice(const IValue& value, c10::DeviceType type) {
  if (!value.isDevice() || !value.toDevice().is_privateuseone()) return value;
  return c10::Device(type);
}

// Bytes from a tensor's first element to the end of its last.
size_t Span(const Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
}

// Marks a tensor that stands for another one as a Python number if that one is.
void NumberLike(const Tensor& source, const Tensor& target) {
  if (source.unsafeGetTensorImpl()->is_wrapped_number()) {
    target.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
}

// Whether an operation that writes to an argument reads it, too.
bool ReadsResult(const std::string& name) {
  for (const char* fills : {"aten::copy_", "aten::zero_", "aten::fill_", "aten::normal_",
                            "aten::_foreach_zero_", "aten::_foreach_copy_"}) {
    if (name == fills) return false;
  }
  return true;
}

// The bytes of the card's memory that one pass over the tensor takes. None for what only attention
// has, heads and scores, as a card's fused kernel keeps these on chip.
double BytesOf(const Tensor& tensor) {
  if (!IsOnBackend(tensor) || tensor.dim() > 3) return 0;
  if (tensor.dim() == 3 && tensor.size(-1) == tensor.size(-2)) return 0;
  return static_cast<double>(Span(tensor));
}

// One launch: the operation's arguments on the CPU, whose addresses are set when it runs.
class Kernel {
 public:
  explicit Kernel(const c10::OperatorHandle& operation) : operation_(operation) {}

  // Adds an argument, with device tensors that it reads, or writes too.
  void AddArgument(const IValue& value, bool written) {
    std::vector<Tensor> tensors;
    AppendTensors(value, &tensors);
    for (const Tensor& each : tensors) {
      bytes_ += BytesOf(each) * (written && ReadsResult(operation_.schema().name()) ? 2 : 1);
    }
    arguments_.push_back(Replaced(OnDevice(value, c10::DeviceType::CPU), [&](const Tensor& each) {
      return IsOnBackend(each) ? OnCpu(each, written) : Captured(each);
    }));
  }
  // Adds an argument that the kernel accesses where it is, in host memory.
  void AddHostTensor(const Tensor& tensor) { arguments_.push_back(tensor); }
  // Adds memory for a result that is new. Undefined: it is not needed.
  void AddResult(const Tensor& tensor) {
    results_.push_back(tensor.defined() ? OnCpu(tensor, true) : tensor);
    bytes_ += BytesOf(tensor);
  }
  // Adds the arithmetic of a product.
  void AddArithmetic(const Stack& arguments) {
    const std::string& name = operation_.schema().name();
    const bool adds = name == "aten::addmm" || name == "aten::baddbmm";
    if (!adds && name != "aten::mm" && name != "aten::bmm") return;
    const Tensor left = arguments[adds ? 1 : 0].toTensor();
    const Tensor right = arguments[adds ? 2 : 1].toTensor();
    flop_ = 2.0 * static_cast<double>(left.numel()) * static_cast<double>(right.size(-1));
  }

  static void Launch(std::unique_ptr<Kernel> kernel) {
    std::vector<memtide_fake_operand> operands = kernel->operands_;
    const auto run = [](void* context, const memtide_fake_operand* at) {
      return static_cast<Kernel*>(context)->Run(at) ? 0 : 1;
    };
    const auto end = [](void* context) {
      const std::unique_ptr<Kernel> ended(static_cast<Kernel*>(context));
    };
    const size_t count = operands.size();
    const double flop = kernel->flop_, bytes = kernel->bytes_;
    Check(TheFakeCuda().launch(operands.data(), count, {run, end, kernel.release(), flop, bytes}));
  }

 private:
  // A tensor on the CPU of the same layout. The kernel keeps no tensor of the device alive: as on a
  // GPU, its memory may be given away meanwhile.
  Tensor OnCpu(const Tensor& tensor, bool written) {
    const auto known = known_.find(tensor.unsafeGetTensorImpl());
    if (known != known_.end()) {
      if (known->second.operand >= 0) operands_[known->second.operand].written |= written ? 1 : 0;
      return known->second.cpu;
    }
    void* const address = tensor.unsafeGetTensorImpl()->mutable_data();
    Known made;
    made.cpu = at::from_blob(address, tensor.sizes(), tensor.strides(),
                             tensor.options().device(c10::DeviceType::CPU));
    NumberLike(tensor, made.cpu);
    if (tensor.numel() > 0) {
      made.operand = static_cast<int>(operands_.size());
      operands_.push_back({address, Span(tensor), written ? 1 : 0});
      on_cpu_.push_back(made.cpu);
    }
    known_.emplace(tensor.unsafeGetTensorImpl(), made);
    return made.cpu;
  }

  // A tensor in host memory as it is now: the script may change it before the kernel runs.
  static Tensor Captured(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    Tensor copy = tensor.clone();
    NumberLike(tensor, copy);
    return copy;
  }

  bool Run(const memtide_fake_operand* at) {
    try {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      for (size_t i = 0; i < on_cpu_.size(); ++i) {
        on_cpu_[i].storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
            c10::DataPtr(at[i].address, c10::DeviceType::CPU));
      }
      GiveGenerator();
      operation_.callBoxed(&arguments_);
      StoreResults();
      return true;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "kernel of %s: %s\n", operation_.schema().name().c_str(), error.what());
      return false;
    }
  }

  void GiveGenerator() {
    const auto& schema = operation_.schema().arguments();
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const std::string type = schema[i].type()->str();
      if (type.rfind("Generator", 0) == 0) arguments_[i] = TheGenerator();
    }
  }

  void StoreResults() {
    if (results_.empty()) return;
    std::vector<Tensor> computed;
    for (const IValue& value : arguments_) AppendTensors(value, &computed);  // The results by now.
    TORCH_CHECK(computed.size() == results_.size(), "results of another number");
    for (size_t i = 0; i < computed.size(); ++i) {
      if (results_[i].defined()) results_[i].copy_(computed[i]);
    }
  }

  struct Known {
    Tensor cpu;
    int operand = -1;
  };

  const c10::OperatorHandle operation_;
  double flop_ = 0, bytes_ = 0;  // As of memtide_fake_kernel.
  Stack arguments_;
  std::vector<Tensor> results_;
  std::vector<memtide_fake_operand> operands_;
  std::vector<Tensor> on_cpu_;  // By operand.
  std::unordered_map<const c10::TensorImpl*, Known> known_;
};

// Whether an operation writes to this argument. The schema says that fused optimizer steps write to
// gradients; they do if they unscale them.
bool IsWritten(const c10::OperatorHandle& operation, const Stack& arguments, size_t position) {
  const auto& schema = operation.schema();
  const c10::Argument& argument = schema.arguments()[position];
  if (argument.alias_info() == nullptr || !argument.alias_info()->isWrite()) return false;
  if (argument.name() != "grads" || schema.name().rfind("aten::_fused_", 0) != 0) return true;
  const auto scale = schema.argumentIndexWithName("grad_scale");
  return !scale || !arguments[*scale].isNone();
}

// The results of the operation for tensors of these shapes; nullopt: only the elements can tell.
std::optional<Stack> OnMeta(const c10::OperatorHandle& operation, const Stack& arguments) {
  Stack stack;
  std::unordered_map<const c10::TensorImpl*, Tensor> made;
  for (const IValue& value : arguments) {
    stack.push_back(Replaced(OnDevice(value, c10::DeviceType::Meta), [&made](const Tensor& tensor) {
      if (!IsOnBackend(tensor)) return tensor;
      Tensor& meta = made[tensor.unsafeGetTensorImpl()];
      if (!meta.defined()) {
        meta = at::empty_strided(tensor.sizes(), tensor.strides(),
                                 tensor.options().device(c10::DeviceType::Meta));
      }
      return meta;
    }));
  }
  try {
    operation.callBoxed(&stack);
    return stack;
  } catch (const std::exception&) {  // No shapes without elements, or wrong arguments.
    return std::nullopt;
  }
}

bool ReturnsOnlyTensors(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    const std::string type = result.type()->str();
    if (type != "Tensor" && type != "Tensor[]") return false;
    TORCH_CHECK_NOT_IMPLEMENTED(result.alias_info() == nullptr || result.alias_info()->isWrite(),
                                schema.name(), " returns a view, which this backend does not know");
  }
  return true;
}

// Whether an operation may give an argument that it writes to another size.
bool ResizesResult(const c10::OperatorHandle& operation, const Stack& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!IsWritten(operation, arguments, i) || !arguments[i].isTensor()) continue;
    const Tensor& tensor = arguments[i].toTensor();
    if (IsOnBackend(tensor) && tensor.numel() == 0) return true;
  }
  return false;
}

// The position of the argument that the operation returns as this result; nullopt: it is new.
std::optional<size_t> ReturnedArgument(const c10::FunctionSchema& schema, size_t result) {
  const c10::AliasInfo* const alias = schema.returns()[result].alias_info();
  if (alias == nullptr) return std::nullopt;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* const other = schema.arguments()[i].alias_info();
    if (other != nullptr && *other == *alias) return i;
  }
  return std::nullopt;
}

Tensor EmptyLike(const Tensor& meta) {
  if (!meta.defined()) return meta;
  return at::empty_strided(meta.sizes(), meta.strides(),
                           meta.options().device(c10::DeviceType::PrivateUse1));
}

// The CPU's kernels of these norms return statistics in the type of the weight, and backward
// expects them so. On the meta device, as with CUDA, those of bf16 are in fp32.
void GiveTypesOfCpu(const c10::FunctionSchema& schema, const Stack& arguments, Stack* results) {
  if (schema.name() != "aten::native_layer_norm" && schema.name() != "aten::native_batch_norm") {
    return;
  }
  const IValue& weight = arguments[*schema.argumentIndexWithName("weight")];
  const bool has_weight = weight.isTensor() && weight.toTensor().defined();
  const auto type = (has_weight ? weight : arguments[0]).toTensor().scalar_type();
  for (size_t i = 1; i < results->size(); ++i) (*results)[i] = (*results)[i].toTensor().to(type);
}

void LaunchAndReturn(const c10::OperatorHandle& operation, Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  const Stack arguments(stack->end() - static_cast<int64_t>(schema.arguments().size()),
                        stack->end());
  bool has_new_results = false;
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    has_new_results = has_new_results || !ReturnedArgument(schema, i);
  }
  std::optional<Stack> meta;
  if (ReturnsOnlyTensors(schema) && !ResizesResult(operation, arguments)) {
    meta = has_new_results ? OnMeta(operation, arguments) : Stack();
  }
  if (!meta) {
    at::native::cpu_fallback(operation, stack);
    return;
  }
  GiveTypesOfCpu(schema, arguments, &*meta);
  auto kernel = std::make_unique<Kernel>(operation);
  for (size_t i = 0; i < arguments.size(); ++i) {
    kernel->AddArgument(arguments[i], IsWritten(operation, arguments, i));
  }
  kernel->AddArithmetic(arguments);
  torch::jit::drop(*stack, arguments.size());
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    if (const auto argument = ReturnedArgument(schema, i)) {
      stack->push_back(arguments[*argument]);
    } else {
      stack->push_back(Replaced((*meta)[i], EmptyLike));
    }
    if (!has_new_results) continue;
    std::vector<Tensor> results;
    AppendTensors(stack->back(), &results);
    for (const Tensor& each : results) kernel->AddResult(each);
  }
  Kernel::Launch(std::move(kernel));
}

const c10::OperatorHandle& CopyOperation() {
  static const c10::OperatorHandle operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  return operation;
}

}  // namespace

void Launch(const c10::OperatorHandle& operation, Stack* stack) {
  LaunchAndReturn(operation, stack);
}

void Copy(const Tensor& target, const Tensor& source, bool non_blocking) {
  auto kernel = std::make_unique<Kernel>(CopyOperation());
  const bool to_host = !IsOnBackend(target);
  if (to_host) {
    kernel->AddHostTensor(target);
  } else {
    kernel->AddArgument(target, true);
  }
  kernel->AddArgument(source, false);
  kernel->AddArgument(false, false);
  Kernel::Launch(std::move(kernel));
  // Without pinned memory CUDA waits for each copy to the host.
  if (to_host || (!IsOnBackend(source) && !non_blocking)) Check(TheFakeCuda().synchronize());
}

void Seed(uint64_t seed) {
  const auto run = [](void* context, const memtide_fake_operand*) {
    TheGenerator().set_current_seed(*static_cast<uint64_t*>(context));
    return 0;
  };
  const auto end = [](void* context) {
    const std::unique_ptr<uint64_t> ended(static_cast<uint64_t*>(context));
  };
  Check(TheFakeCuda().launch(nullptr, 0, {run, end, std::make_unique<uint64_t>(seed).release()}));
}

Tensor GeneratorState() {
  Check(TheFakeCuda().synchronize());
  return TheGenerator().get_state();
}

void SetGeneratorState(const Tensor& state) {
  Check(TheFakeCuda().synchronize());
  TheGenerator().set_state(state);
}

}  // namespace memtide::fake_device
