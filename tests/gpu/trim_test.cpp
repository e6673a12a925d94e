// Memory of removed files returns to the system while it is registered with the GPU: the files' blocks are freed, and
// data that is written there afterwards reaches the medium.
//
// usage: gpu4fs_gpu_trim_test [cpu]    cpu: with the CPU engine, to try the test itself
#include <sys/stat.h>

#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_report.hpp"
#include "growth/growing_pool.hpp"
#include "support/basic_test_pool.hpp"

namespace gpu4fs::test {
namespace {

constexpr u64 mega = u64{1} << 20;

class TrimmedPool {
 public:
  TrimmedPool(const char* profile, u32 device_count, session::EngineChoice engine)
      : profile_(profile), engine_(engine) {
    pool::MakePoolOptions make;
    for (u32 i = 0; i < device_count; ++i) make.device_paths.push_back(folder_.device(i));
    make.size_bytes = 64 * mega;
    make.chunk_size_bytes = 16 * mega;
    make.data_profile = make.metadata_profile = profile;
    pool::make_pool(make);
    paths_ = make.device_paths;
  }

  void run() {
    mount();
    const u64 kept = make_file(*files_, "kept");
    for (u64 block = 0; block < 10; ++block)
      expect(write_block(*files_, kept, block, block) == Status::ok, "the kept file is written");
    const u64 large = make_file(*files_, "large");
    for (u64 round = 0; round < 2; ++round) {
      const u64 seed = 1000 * (round + 1);
      const u64 count = fill_file(*files_, large, 0, seed);
      expect(count > 200, "the pool takes a large file");
      const u64 full = allocated_bytes();
      expect(bool{has_blocks(*files_, large, count, seed)}, "the large file is read");
      expect(files_->simple(wire::Opcode::truncate, large, 0).status == Status::ok, "the large file goes");
      const maintenance::TrimReport report = server_->trimmer().trim_all();
      expect(report.status == Status::ok, "a trim");
      expect(allocated_bytes() < full / 2, fmt::format("{} of {} bytes are left", allocated_bytes(), full));
      expect(bool{has_blocks(*files_, kept, 10, 0)}, "the kept file is read");
    }
    // The files contain what the GPU wrote after the trims.
    const u64 count = fill_file(*files_, large, 0, 9000);
    unmount();
    expect(find_problems(paths_).empty(), "the medium is sound: " + find_problems(paths_));
    mount();
    expect(bool{has_blocks(*files_, find_file(*files_, "large"), count, 9000)}, "the large file after a mount");
    expect(bool{has_blocks(*files_, find_file(*files_, "kept"), 10, 0)}, "the kept file after a mount");
    unmount();
  }

 private:
  void expect(bool holds, const std::string& what) { check(holds, fmt::format("{}: {}", profile_, what)); }
  void mount() {
    session::ServerOptions options;
    options.device_paths = paths_;
    options.engine = engine_;
    options.commit_interval_s = 0;
    server_ = std::make_unique<server::PoolServer>(options);
    server_->start();
    server::LocalSession local = server_->open_session(mega);
    session_ =
        std::make_unique<client::Session>(client::Connection{local.producer, local.port, std::move(local.owner)});
    files_ = std::make_unique<FileClient>(*session_);
  }
  void unmount() {
    files_.reset();
    session_.reset();
    expect(!server_->engine().has_died(), "the engine lives: " + server_->engine().fault_text());
    expect(server_->stop(), "the last checkpoint is written");
    server_.reset();
  }
  u64 allocated_bytes() const {
    u64 sum = 0;
    for (const std::string& path : paths_) {
      struct stat status {};
      if (::stat(path.c_str(), &status) == 0) sum += static_cast<u64>(status.st_blocks) * 512;
    }
    return sum;
  }

  std::string profile_;
  session::EngineChoice engine_;
  DeviceFolder folder_;
  std::vector<std::string> paths_;
  std::unique_ptr<server::PoolServer> server_;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<FileClient> files_;
};

void run(session::EngineChoice engine) {
  TrimmedPool("single", 1, engine).run();
  TrimmedPool("raid0", 3, engine).run();
  TrimmedPool("raid1", 2, engine).run();
  TrimmedPool("raid5", 4, engine).run();
}

}  // namespace
}  // namespace gpu4fs::test

int main(int argument_count, char** arguments) {
  using namespace gpu4fs;
  const bool on_cpu = argument_count > 1 && std::strcmp(arguments[1], "cpu") == 0;
  try {
    if (on_cpu || test::has_gpu()) test::run(on_cpu ? session::EngineChoice::cpu : session::EngineChoice::cuda);
  } catch (const std::exception& error) {
    test::check(false, error.what());
  }
  return test::finish();
}
