// A fuzzer without support of the compiler, for builds without libFuzzer: runs the corpus, then mutations of it that
// depend only on the seed.
//
//   gpu4fs_fuzz_<name> [--runs N] [--seconds S] [--seed X] [--corpus FOLDER] [FILE...]
//
// If files are given, only they are run. After a failure the exit status is 1, and the working directory has a copy of
// the input.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz_target.hpp"

extern "C" int LLVMFuzzerInitialize(int* argument_count, char*** arguments);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t length);
// A function of the sanitizers; absent in a build without them.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace gpu4fs::fuzz {

extern unsigned long input_count;

namespace {

using Bytes = std::vector<u8>;

const Bytes* current_input = nullptr;

// Callable from a signal handler.
void report_failure() {
  static char text[200];
  const int length = std::snprintf(text, sizeof(text), "fuzz-%s-failure", target_name);
  if (length > 0 && current_input != nullptr) {
    const int file = ::open(text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    const ssize_t written = ::write(file, current_input->data(), current_input->size());
    ::close(file);
    std::snprintf(text, sizeof(text), "input of %zd bytes written to fuzz-%s-failure\n", written, target_name);
    (void)!::write(STDOUT_FILENO, text, std::strlen(text));
  }
  std::snprintf(text, sizeof(text), "fuzz %s: %lu inputs, 1 failures\n", target_name, input_count);
  (void)!::write(STDOUT_FILENO, text, std::strlen(text));
}

extern "C" void end_by_signal(int number) {
  static const char text[] = "an input took too long\n";
  if (number == SIGALRM) (void)!::write(STDERR_FILENO, text, sizeof(text) - 1);
  report_failure();
  ::_exit(1);
}

class Random {
 public:
  explicit Random(u64 seed) : state_(seed) {}
  u64 next() {
    u64 z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  u64 below(u64 bound) { return bound == 0 ? 0 : next() % bound; }

 private:
  u64 state_;
};

constexpr std::size_t length_max = 1024;

void mutate_once(Bytes& input, const std::vector<Bytes>& corpus, Random& random) {
  const std::size_t at = random.below(input.size() + 1);
  const auto place = [&] { return input.begin() + static_cast<std::ptrdiff_t>(at); };
  switch (random.below(8)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<u8>(input[at] ^ 1u << random.below(8));
      break;
    case 1:
      if (at < input.size()) input[at] = static_cast<u8>(random.next());
      break;
    case 2:
      if (at < input.size()) input[at] = static_cast<u8>(input[at] + random.below(17) - 8);
      break;
    case 3:
      for (u64 i = 0, count = 1 + random.below(12); i < count; ++i)
        input.insert(place(), static_cast<u8>(random.next()));
      break;
    case 4:
      input.erase(place(),
                  place() + static_cast<std::ptrdiff_t>(std::min<u64>(input.size() - at, 1 + random.below(12))));
      break;
    case 5: {
      const Bytes& other = corpus[random.below(corpus.size())];
      const u64 begin = random.below(other.size() + 1);
      const u64 count = std::min<u64>(other.size() - begin, 1 + random.below(40));
      const Bytes part(other.begin() + static_cast<std::ptrdiff_t>(begin),
                       other.begin() + static_cast<std::ptrdiff_t>(begin + count));
      input.insert(place(), part.begin(), part.end());
      break;
    }
    default:
      for (u64 i = at; i < std::min<u64>(input.size(), at + (u64{1} << random.below(4))); ++i)
        input[i] = random.below(3) == 0 ? 0xff : static_cast<u8>(random.next());
      break;
  }
  if (input.size() > length_max) input.resize(length_max);
}

void run(const Bytes& input) {
  current_input = &input;
  ::alarm(input_seconds_max);
  LLVMFuzzerTestOneInput(input.data(), input.size());
  ::alarm(0);
  current_input = nullptr;
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<Bytes> read_corpus(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus{{}};
  for (const auto& path : paths) corpus.push_back(read_file(path));
  return corpus;
}

struct Options {
  u64 run_count = 1000;
  u64 seconds = 300;
  u64 seed = 1;
  std::string corpus;
  std::vector<std::string> files;
};

Options parse(int argument_count, char** arguments) {
  Options options;
  for (int i = 1; i < argument_count; ++i) {
    const std::string_view name = arguments[i];
    const char* value = i + 1 < argument_count ? arguments[i + 1] : "0";
    if (name == "--runs")
      options.run_count = std::strtoull(value, nullptr, 10), ++i;
    else if (name == "--seconds")
      options.seconds = std::strtoull(value, nullptr, 10), ++i;
    else if (name == "--seed")
      options.seed = std::strtoull(value, nullptr, 10), ++i;
    else if (name == "--corpus")
      options.corpus = value, ++i;
    else
      options.files.emplace_back(name);
  }
  return options;
}

void run_mutations(const Options& options) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(options.seconds);
  const std::vector<Bytes> corpus = read_corpus(options.corpus);
  for (const Bytes& input : corpus) run(input);
  Random random(options.seed);
  for (u64 i = 0; i < options.run_count && Clock::now() < end; ++i) {
    Bytes input = corpus[random.below(corpus.size())];
    for (u64 count = 1 + random.below(10); count > 0; --count) mutate_once(input, corpus, random);
    run(input);
  }
}

}  // namespace
}  // namespace gpu4fs::fuzz

int main(int argument_count, char** arguments) {
  using namespace gpu4fs::fuzz;
  LLVMFuzzerInitialize(&argument_count, &arguments);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(report_failure);
  std::signal(SIGABRT, end_by_signal);
  std::signal(SIGALRM, end_by_signal);
  const Options options = parse(argument_count, arguments);
  if (options.files.empty()) {
    run_mutations(options);
  } else {
    for (const std::string& path : options.files) run(read_file(path));
  }
  return 0;
}
