// The part that memtide sees of a driver's library from before CUDA 12.0.
extern "C" int cuDriverGetVersion(int* version) {
  *version = 11080;
  return 0;
}
