// Frames of HTTP/2 (RFC 9113) that a client of the test's own sends.
#ifndef MEMTIDE_DAEMON_SERVICE_TESTING_HTTP2_FRAMES_H_
#define MEMTIDE_DAEMON_SERVICE_TESTING_HTTP2_FRAMES_H_

#include <cstdint>
#include <string>

namespace memtide::http2 {

inline constexpr uint8_t kHeaders = 1, kSettings = 4, kPing = 6;
inline constexpr uint8_t kAck = 1, kEndHeaders = 4;

inline std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(payload.size() >> shift & 0xff);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift & 0xff);
  return frame + payload;
}

// The bytes that a client sends first.
inline std::string Preface() {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "");
}

// Calls without a message.
inline std::string Calls(uint32_t count) {
  // POST, http, and the path and authority as literals.
  const std::string path = "/memtide.v1.SessionService/Renew";
  const std::string block = std::string("\x83\x86\x44") + static_cast<char>(path.size()) + path +
                            "\x41\x01x\x40\x02te\x08trailers\x5f\x10"
                            "application/grpc";
  std::string calls;
  for (uint32_t i = 0; i < count; ++i) calls += Frame(kHeaders, kEndHeaders, 2 * i + 1, block);
  return calls;
}

}  // namespace memtide::http2

#endif  // MEMTIDE_DAEMON_SERVICE_TESTING_HTTP2_FRAMES_H_
