// Runs a kernel body: each thread of a threadgroup is a fiber, and barriers and simd operations are where fibers meet.
#include <sys/mman.h>
#include <ucontext.h>
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>
#include "metal_stdlib"

void kernel_body(const emu::Region* const* buffers);  // one thread of the kernel under test

namespace emu {

constexpr int SIMD = 32;
constexpr int MOST_THREADS = 1024;
constexpr uint64_t MOST_SHARED = 32 << 10;  // bytes of threadgroup memory
constexpr size_t STACK = 128 << 10;
constexpr int MANY = -2, NOBODY = -1;

struct Cell {  // what one element has seen: everything since the last barrier, and whether it was ever written
  uint64_t epoch = 0;
  int thread = NOBODY;
  uint8_t kinds = 0;
  bool written = false;
  uint group = 0;  // that wrote it
};
enum State { READY, AT_BARRIER, AT_SIMD, DONE };
struct Fiber {
  ucontext_t context;
  State state;
  Site site;
  Operation operation;
  Lane lane;
  double result;
  int flags;
};
struct Array {
  std::vector<char> memory;
  std::vector<Cell> cells;
  Region region;
};

struct Launch {
  uint3 grid, asked, group, size;  // threads in all, threads a group, this group's index and its threads (tails shrink)
  uint number = 0;                 // of this group
  std::vector<Fiber> fibers;
  std::map<int, std::unique_ptr<Array>> arrays;
  uint64_t shared_bytes = 0;
  uint64_t shared_epoch = 1, device_epoch = 1;  // each barrier starts a new one for the memory that its flags name
  int now = 0;
  ucontext_t scheduler;
  std::string error;
  const Region* const* buffers = nullptr;
  char* stacks = nullptr;
};
static thread_local Launch* run = nullptr;

static std::string text(const char* format, ...) {
  char line[240];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return line;
}

static void leave(State state) {
  Fiber& fiber = run->fibers[run->now];
  fiber.state = state;
  swapcontext(&fiber.context, &run->scheduler);
}

// The first error stands. The fiber stops here for good, and the scheduler raises.
[[noreturn]] static void stop(const std::string& why) {
  if (run->error.empty()) run->error = why + text(" (thread %d, group %u)", run->now, run->number);
  leave(DONE);
  abort();
}

static void order(const Region* region, Cell& cell, Access access, long index) {
  const uint64_t epoch = region->device ? run->device_epoch : run->shared_epoch;
  const auto refuse = [&](const char* why) { stop(text("%s[%ld] %s", region->name, index, why)); };
  if (access != WRITE && !cell.written) refuse("is read before it was written");
  if (region->device && cell.written && cell.group != run->number) refuse("is touched by two threadgroups");
  if (cell.epoch != epoch) {
    cell.epoch = epoch, cell.thread = run->now, cell.kinds = 0;
  } else if (cell.thread != run->now) {
    const int kinds = cell.kinds | access;
    if (kinds != READ && kinds != ADD) refuse("is a race: touched by two threads with no barrier between");
    cell.thread = MANY;
  }
  cell.kinds |= access;
  if (access != READ) cell.written = true, cell.group = run->number;
}

void touch(const Region* region, const void* at, Access access) {
  const int64_t offset = (const char*)at - region->start;
  const int64_t index = offset / int64_t(region->element);
  if (offset < 0 || uint64_t(offset) + region->element > region->bytes)
    stop(text("out of range: %s[%ld] of %ld", region->name, long(index), long(region->bytes / region->element)));
  if (region->cells) order(region, region->cells[index], access, index);
}

const Region* shared(uint64_t count, uint32_t element, const char* name, int id) {
  auto& array = run->arrays[id];
  if (!array) {
    array = std::make_unique<Array>();
    array->memory.assign(count * element, char(0xCD));
    array->cells.resize(count);
    array->region = {array->memory.data(), count * element, element, name, array->cells.data(), false};
    run->shared_bytes += count * element;
    if (run->shared_bytes > MOST_SHARED) stop(text("threadgroup memory over %ld bytes", long(MOST_SHARED)));
  }
  return &array->region;
}

double poison(bool floating) { return floating ? std::numeric_limits<double>::quiet_NaN() : double(0x4DCDCDCD); }

uint lane() { return uint(run->now) % SIMD; }

double meet(Operation operation, Lane lane, Site site) {
  Fiber& fiber = run->fibers[run->now];
  fiber.operation = operation, fiber.lane = lane, fiber.site = site;
  leave(AT_SIMD);
  return run->fibers[run->now].result;
}

void barrier(int flags, Site site) {
  Fiber& fiber = run->fibers[run->now];
  fiber.flags = flags, fiber.site = site;
  leave(AT_BARRIER);
}

Place place() {
  const uint thread = uint(run->now);
  const uint3 size = run->size, group = run->group, asked = run->asked, grid = run->grid;
  const uint3 in{thread % size.x, thread / size.x % size.y, thread / (size.x * size.y)};
  const uint3 at{group.x * asked.x + in.x, group.y * asked.y + in.y, group.z * asked.z + in.z};
  const uint3 groups{(grid.x + asked.x - 1) / asked.x, (grid.y + asked.y - 1) / asked.y, (grid.z + asked.z - 1) / asked.z};
  return {at, in, group, size, groups, thread, thread % SIMD, thread / SIMD};
}

static bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() && !strcmp(a.file_name(), b.file_name());
}

static double float_sum(const std::vector<double>& values) {  // pairwise, as the hardware adds
  std::vector<float> part(values.begin(), values.end());
  part.resize(SIMD, 0.0f);
  for (int width = SIMD / 2; width; width /= 2)
    for (int i = 0; i < width; i++) part[i] += part[i + width];
  return part[0];
}

static double prefix(const std::vector<double>& values, int count, bool floating) {
  double exact = 0;
  float rounded = 0;
  for (int i = 0; i < count; i++) exact += values[i], rounded += float(values[i]);
  return floating ? rounded : exact;
}

static void resolve(int first, int last) {
  std::vector<double> values;
  for (int i = first; i < last; i++) values.push_back(run->fibers[i].lane.value);
  const int lanes = last - first;
  for (int i = 0; i < lanes; i++) {
    Fiber& fiber = run->fibers[first + i];
    const int64_t from = fiber.lane.source;
    if (fiber.operation == BROADCAST && from != run->fibers[first].lane.source)
      throw std::runtime_error("simd_broadcast from different lanes");
    switch (fiber.operation) {
      case SUM: fiber.result = float_sum(values); break;
      case SUM_OF_INTEGERS: fiber.result = prefix(values, lanes, false); break;
      case MAX: fiber.result = *std::max_element(values.begin(), values.end()); break;
      case MIN: fiber.result = *std::min_element(values.begin(), values.end()); break;
      case PREFIX: fiber.result = prefix(values, i + int(from), true); break;
      case PREFIX_OF_INTEGERS: fiber.result = prefix(values, i + int(from), false); break;
      default: fiber.result = from >= 0 && from < lanes ? values[from] : poison(false);
    }
    fiber.state = READY;
  }
}

static bool resolve_simdgroups() {
  bool any = false;
  auto& fibers = run->fibers;
  const int count = int(fibers.size());
  for (int first = 0; first < count; first += SIMD) {
    const int last = std::min(count, first + SIMD);
    int waiting = 0, together = 0;
    for (int i = first; i < last; i++) {
      waiting += fibers[i].state == AT_SIMD;
      together += fibers[i].state == AT_SIMD && same(fibers[i].site, fibers[first].site);
    }
    if (!waiting) continue;
    if (together != last - first)
      throw std::runtime_error(text("simd operation at line %d is not reached by every lane", int(fibers[first].site.line())));
    resolve(first, last);
    any = true;
  }
  return any;
}

// Every fiber waits or is done. Returns false once all are done.
static bool advance() {
  if (resolve_simdgroups()) return true;
  auto& fibers = run->fibers;
  const auto waiting = std::count_if(fibers.begin(), fibers.end(), [](const Fiber& f) { return f.state == AT_BARRIER; });
  if (!waiting) return false;
  if (size_t(waiting) != fibers.size()) throw std::runtime_error("barrier is not reached by every thread");
  for (const Fiber& fiber : fibers)
    if (!same(fiber.site, fibers[0].site)) throw std::runtime_error("threads wait at different barriers");
  if (fibers[0].flags & 1) run->device_epoch++;
  if (fibers[0].flags & 2) run->shared_epoch++;
  for (Fiber& fiber : fibers) fiber.state = READY;
  return true;
}

static void entry() {
  kernel_body(run->buffers);
  leave(DONE);
}

static void run_group(const std::vector<int>& order) {
  run->fibers.assign(order.size(), Fiber());
  run->arrays.clear();
  run->shared_bytes = 0;
  run->shared_epoch++, run->device_epoch++;
  for (size_t i = 0; i < order.size(); i++) {
    Fiber& fiber = run->fibers[i];
    getcontext(&fiber.context);
    fiber.context.uc_stack = {run->stacks + i * STACK, 0, STACK};
    fiber.context.uc_link = &run->scheduler;
    fiber.state = READY;
    makecontext(&fiber.context, entry, 0);
  }
  do {
    for (int i : order) {
      if (run->fibers[i].state != READY) continue;
      run->now = i;
      swapcontext(&run->scheduler, &run->fibers[i].context);
      if (!run->error.empty()) throw std::runtime_error(run->error);
    }
  } while (advance());
}

static std::vector<int> ordered(int count, int how, std::mt19937& random) {
  std::vector<int> order(count);
  for (int i = 0; i < count; i++) order[i] = how == 1 ? count - 1 - i : i;
  if (how == 2) std::shuffle(order.begin(), order.end(), random);
  return order;
}

static uint tail(uint grid, uint asked, uint group) { return std::min(asked, grid - group * asked); }

static void run_grid(int how) {
  std::mt19937 random(7);
  const uint3 grid = run->grid, asked = run->asked;
  const uint nx = (grid.x + asked.x - 1) / asked.x, ny = (grid.y + asked.y - 1) / asked.y, nz = (grid.z + asked.z - 1) / asked.z;
  for (int number : ordered(int(nx * ny * nz), how, random)) {
    run->number = uint(number);
    run->group = {number % nx, number / nx % ny, number / (nx * ny)};
    run->size = {tail(grid.x, asked.x, run->group.x), tail(grid.y, asked.y, run->group.y), tail(grid.z, asked.z, run->group.z)};
    run_group(ordered(int(run->size.x * run->size.y * run->size.z), how, random));
  }
}

static void all_written(const Region& region) {
  const long count = long(region.bytes / region.element);
  for (long i = 0; i < count; i++)
    if (!region.cells[i].written) throw std::runtime_error(text("output %s[%ld] is never written", region.name, i));
}

}  // namespace emu

struct Buffer {
  char* start;
  uint64_t bytes;
  uint32_t element;
  uint32_t output;
  const char* name;
  const int* shape;
  const int64_t* strides;
};

// launch: grid x y z, threadgroup x y z, order (0 forwards, 1 backwards, 2 shuffled). Returns 0, or 1 with error filled.
extern "C" int emulate(const Buffer* buffers, int count, const uint* launch, char* error, size_t room) {
  emu::Launch state;
  std::vector<emu::Region> regions(count);
  std::vector<std::vector<emu::Cell>> cells(count);
  std::vector<const emu::Region*> seen;
  for (int i = 0; i < count; i++) {
    const Buffer& buffer = buffers[i];
    if (buffer.output) cells[i].resize(buffer.bytes / buffer.element);
    emu::Cell* const watched = buffer.output ? cells[i].data() : nullptr;
    regions[i] = {buffer.start, buffer.bytes, buffer.element, buffer.name, watched, true, buffer.shape, buffer.strides};
    seen.push_back(&regions[i]);
  }
  const size_t room_for_stacks = emu::MOST_THREADS * emu::STACK;
  void* stacks = mmap(nullptr, room_for_stacks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  state.grid = {launch[0], launch[1], launch[2]};
  state.asked = {std::min(launch[0], launch[3]), std::min(launch[1], launch[4]), std::min(launch[2], launch[5])};
  state.buffers = seen.data();
  state.stacks = (char*)stacks;
  emu::run = &state;
  int status = 0;
  try {
    if (stacks == MAP_FAILED) throw std::runtime_error("no memory for the stacks");
    if (state.asked.x * state.asked.y * state.asked.z > emu::MOST_THREADS) throw std::runtime_error("over 1024 threads in a group");
    emu::run_grid(int(launch[6]));
    for (int i = 0; i < count; i++)
      if (buffers[i].output) emu::all_written(regions[i]);
  } catch (const std::exception& problem) {
    snprintf(error, room, "%s", problem.what());
    status = 1;
  }
  if (stacks != MAP_FAILED) munmap(stacks, room_for_stacks);
  return status;
}
