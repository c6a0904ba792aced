// A program's own kernels: modules of code for a GPU, whose kernels a CPU plays.
#include "base/cuda/fake/modules.h"

#include <map>
#include <memory>
#include <utility>

#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/kernel.h"
#include "base/cuda/fake/process.h"
#include "base/cuda/fake/streams.h"

namespace memtide::fake_cuda {
namespace {

struct Table {
  Mutex mutex;
  // By name. An entry is never removed: its address is the kernel's CUfunction.
  std::map<std::string, PlayKernel> kernels ABSL_GUARDED_BY(mutex);
};

Table& TheTable() {
  // tidy(raw-new): never freed, because threads use it until the process exits.
  static Table& table = *new Table();
  return table;
}

// A launch, as Kernel wants it.
struct Launch {
  std::function<void(const std::vector<void*>&)> run;
  size_t operands = 0;
};

int Run(void* context, const memtide_fake_operand* operands) {
  const auto* const launch = static_cast<const Launch*>(context);
  std::vector<void*> addresses;
  for (size_t i = 0; i < launch->operands; ++i) addresses.push_back(operands[i].address);
  launch->run(addresses);
  return 0;
}

// Owns a launch from here on.
void End(void* context) { const std::unique_ptr<Launch> ended(static_cast<Launch*>(context)); }

}  // namespace

void DefineKernel(const std::string& name, PlayKernel play) {
  Table& table = TheTable();
  const MutexLock lock(&table.mutex);
  table.kernels[name] = play;
}

CUresult ModuleLoadData(CUmodule* module, const void* image) {
  Process& process = TheProcess();
  Call call(&process, "cuModuleLoadData", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // All modules are one, because kernels are found by their names alone.
  *module = reinterpret_cast<CUmodule>(&TheTable());
  return CUDA_SUCCESS;
}

CUresult ModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  Process& process = TheProcess();
  Call call(&process, "cuModuleGetFunction", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  Table& table = TheTable();
  const MutexLock lock(&table.mutex);
  const auto found = table.kernels.find(name);
  if (found == table.kernels.end()) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(&found->second);
  return CUDA_SUCCESS;
}

CUresult LaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                      unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                      unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                      void** parameters, void** extra) {
  PlayedKernel played = (*reinterpret_cast<PlayKernel*>(function))(parameters);
  std::vector<memtide_fake_operand> operands;
  for (const KernelOperand& operand : played.operands) {
    operands.push_back({reinterpret_cast<void*>(operand.address), operand.size, operand.written});
  }
  auto launch = std::make_unique<Launch>(Launch{std::move(played.run), operands.size()});
  const auto queued = std::make_shared<Kernel>(std::move(operands),
                                               memtide_fake_kernel{&Run, &End, launch.release()});
  Process& process = TheProcess();
  Call call(&process, "cuLaunchKernel", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  Stream* const found = FindStream(&process, stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto run = [&process, queued]()
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(process.mutex) { queued->Run(&process); };
  found->Push(&process, run, queued->accessed());
  return CUDA_SUCCESS;
}

}  // namespace memtide::fake_cuda
