#include "bench/gpu/report.h"

#include <cstdio>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_replace.h"

namespace memtide::bench {
namespace {

std::string Quoted(absl::string_view text) {
  // CEscape escapes apostrophes, which JSON does not permit.
  return "\"" + absl::StrReplaceAll(absl::CEscape(text), {{"\\'", "'"}}) + "\"";
}

}  // namespace

void Answer(absl::string_view question, absl::string_view answer) {
  std::printf("{\"name\": %s, \"answer\": %s}\n", Quoted(question).c_str(), Quoted(answer).c_str());
  std::fflush(stdout);
}

void YesOrNo(absl::string_view question, bool yes) {
  std::printf("{\"name\": %s, \"answer\": \"%s\", \"met\": %s}\n", Quoted(question).c_str(),
              yes ? "yes" : "no", yes ? "true" : "false");
  std::fflush(stdout);
}

void MedianAndWorst(const std::string& name, std::vector<double>* microseconds) {
  std::sort(microseconds->begin(), microseconds->end());
  Figure(name + ", median", (*microseconds)[microseconds->size() / 2], "us");
  Figure(name + ", worst", microseconds->back(), "us");
}

void Figure(absl::string_view name, double value, absl::string_view unit, absl::string_view note) {
  std::printf("{\"name\": %s, \"value\": %.6g, \"unit\": %s, \"note\": %s}\n", Quoted(name).c_str(),
              value, Quoted(unit).c_str(), Quoted(note).c_str());
  std::fflush(stdout);
}

void Ratio(absl::string_view name, double value, double goal) {
  std::printf("{\"name\": %s, \"value\": %.6g, \"unit\": \"x\", \"at_least\": %.6g}\n",
              Quoted(name).c_str(), value, goal);
  std::fflush(stdout);
}

}  // namespace memtide::bench
