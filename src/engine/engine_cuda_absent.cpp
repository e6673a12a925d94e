// What remains of the GPU engine in a build without CUDA.
#include "engine/engine_cuda.hpp"

#if !GPU4FS_WITH_CUDA

#include <stdexcept>

namespace gpu4fs::engine {

namespace {
[[noreturn]] void refuse() {
  throw std::runtime_error("this gpu4fs was built without CUDA");
}
}  // namespace

CudaAvailability cuda_availability(int /*device*/) {
  return {false, "this gpu4fs was built without CUDA"};
}
EngineConfig cuda_engine_config(const CudaOptions& /*options*/) {
  refuse();
}

struct CudaAllocator::State {};
CudaAllocator::CudaAllocator(int /*device*/) {
  refuse();
}
CudaAllocator::~CudaAllocator() = default;
void* CudaAllocator::allocate(u64 /*bytes*/, u64 /*alignment*/) {
  refuse();
}
void CudaAllocator::copy_in(void* /*to*/, const void* /*from*/, u64 /*bytes*/) {
  refuse();
}
void CudaAllocator::zero(void* /*to*/, u64 /*bytes*/) {
  refuse();
}
bool CudaAllocator::copy_out(void* /*to*/, const void* /*from*/, u64 /*bytes*/) {
  refuse();
}
void* CudaAllocator::allocate_shared(u64 /*bytes*/) {
  refuse();
}

class CudaEngine::Implementation {};
CudaEngine::CudaEngine(Engine* /*engine*/, ring::UpcallRing* /*upcalls*/, CudaAllocator& /*allocator*/,
                       const CudaOptions& /*options*/) {
  refuse();
}
CudaEngine::~CudaEngine() = default;
void CudaEngine::start() {
  refuse();
}
void CudaEngine::stop() {
  refuse();
}
u32 CudaEngine::open_session(const SessionRequest& /*request*/) {
  refuse();
}
void CudaEngine::close_session(u32 /*session*/) {
  refuse();
}
Status CudaEngine::add_buffer(u32 /*session*/, u32 /*buffer*/, void* /*base*/, u64 /*length*/) {
  refuse();
}
void CudaEngine::remove_buffer(u32 /*session*/, u32 /*buffer*/) {
  refuse();
}
ring::EnginePort& CudaEngine::port(u32 /*session*/) {
  refuse();
}
bool CudaEngine::wait_upcall(ring::Upcall* /*upcall*/, u64 /*timeout_ns*/) {
  refuse();
}
Status CudaEngine::map_memory(void* /*base*/, u64 /*length*/) {
  refuse();
}
void CudaEngine::unmap_memory(void* /*base*/, u64 /*length*/) {
  refuse();
}
void CudaEngine::while_paused(const std::function<void()>& /*work*/) {
  refuse();
}
bool CudaEngine::has_died() const {
  refuse();
}
std::string CudaEngine::fault_text() const {
  refuse();
}
void CudaEngine::request_death() {
  refuse();
}
std::string CudaEngine::description() const {
  refuse();
}
EngineCounters CudaEngine::counters() const {
  refuse();
}
device::PageCacheCounters CudaEngine::page_cache() const {
  refuse();
}
device::PageTierCounters CudaEngine::page_tier() const {
  refuse();
}
TraceTotals CudaEngine::trace() const {
  refuse();
}
u64 CudaEngine::durable_epoch() const {
  refuse();
}
bool CudaEngine::is_asleep() const {
  refuse();
}
u64 CudaEngine::launch_count() const {
  refuse();
}

}  // namespace gpu4fs::engine

#endif
