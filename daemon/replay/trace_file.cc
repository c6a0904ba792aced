#include "daemon/replay/trace_file.h"

#include <google/protobuf/io/gzip_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>

#include <fstream>

namespace memtide {

absl::StatusOr<v1::Trace> LoadTrace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError("the file cannot be read");
  google::protobuf::io::IstreamInputStream bytes(&file);
  google::protobuf::io::GzipInputStream unpacked(&bytes,
                                                 google::protobuf::io::GzipInputStream::GZIP);
  v1::Trace trace;
  // A file that was cut between two fields would parse, so errors of the decompression count, too.
  if (!trace.ParseFromZeroCopyStream(&unpacked) || unpacked.ZlibErrorMessage() != nullptr) {
    return absl::InvalidArgumentError(
        "it is not a trace (a gzip-compressed memtide.v1.Trace), or it is cut; "
        "`memtide trace export --raw FILE` makes one");
  }
  return trace;
}

}  // namespace memtide
