#pragma once

// Kokkos with an emulated GPU as its default device: found before the real header, which it includes. What the program
// uses of Kokkos is declared again in EmulatedKokkos, a macro gives it Kokkos' name, and all else is Kokkos' own.
//
//   kernels    are queued on their instance's stream; the Serial backend runs them when the stream gets there
//   memory     of the device is that of device_memory.hpp; host mirrors are always copies
//   fences     and results on the host wait for the stream (two-argument copies and Kokkos::fence: for the device)

#include_next <Kokkos_Core.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <variant>

#include "emulation/closure.hpp"
#include "emulation/device_memory.hpp"
#include "emulation/scheduler.hpp"
#include "nanotron/base/gpu_api.hpp"

namespace EmulatedKokkos {

using namespace ::Kokkos;

struct DeviceSpace {};

/// An instance: a stream.
class Gpu {
 public:
  using execution_space = Gpu;
  using memory_space = DeviceSpace;
  using scratch_memory_space = ::Kokkos::Serial::scratch_memory_space;

  Gpu() : stream_(shared_stream()) {}
  explicit Gpu(gpuStream_t stream) : stream_(stream) {}
  gpuStream_t cuda_stream() const { return stream_; }
  gpuStream_t hip_stream() const { return stream_; }
  void fence() const { gpuStreamSynchronize(stream_); }
  int concurrency() const { return 1; }
  nanotron::emulation::Stream& queue() const { return *reinterpret_cast<nanotron::emulation::Stream*>(stream_); }

 private:
  static gpuStream_t shared_stream() {
    static const gpuStream_t stream = [] {
      gpuStream_t made = nullptr;
      gpuStreamCreate(&made);
      return made;
    }();
    return stream;
  }
  gpuStream_t stream_;
};

using DefaultExecutionSpace = Gpu;

inline void initialize(int& count, char** arguments) {
  int device = 0;
  gpuGetDevice(&device);
  ::Kokkos::initialize(count, arguments);
}
inline void fence() { gpuDeviceSynchronize(); }

// Views --------------------------------------------------------------------------------------------

// Kokkos allocates a header before the elements (Kokkos_SharedAlloc.hpp of 4.6: SharedAllocationHeader, 128 bytes), so
// that they start at a multiple of 128 bytes, not of 256.
inline constexpr std::size_t header = 128;
inline void* allocate_behind_header(std::size_t bytes) {
  void* const all = nanotron::emulation::allocate_device(header + bytes);
  return all == nullptr ? nullptr : static_cast<std::byte*>(all) + header;
}
inline void free_with_header(void* memory) {
  if (memory != nullptr) gpuFree(static_cast<std::byte*>(memory) - header);
}

template <class P>
using on_cpu = std::conditional_t<std::is_same_v<P, DeviceSpace>, ::Kokkos::HostSpace, P>;

template <class T, class... P>
class View : public ::Kokkos::View<T, on_cpu<P>...> {
 public:
  using Base = ::Kokkos::View<T, on_cpu<P>...>;
  static constexpr bool is_on_device = (std::is_same_v<P, DeviceSpace> || ...);
  static constexpr bool is_managed = Base::traits::is_managed;
  using Pointer = typename Base::pointer_type;

  View() = default;
  template <class... N>
  requires(std::is_convertible_v<N, std::size_t>&&...) View(Pointer data, N... extents)
      : Base(data, static_cast<std::size_t>(extents)...) {}
  /// Zeros, as Kokkos fills them.
  template <class... N>
  requires(std::is_convertible_v<N, std::size_t>&&...) explicit View(const std::string& label, N... extents)
      : View(made(label, static_cast<std::size_t>(extents)...)) {}
  /// In the scratch memory of a team.
  View(const Gpu::scratch_memory_space& team, std::size_t extent) : Base(team, extent) {}
  template <class U, class... Q>
  View(const View<U, Q...>& other) : Base(static_cast<const typename View<U, Q...>::Base&>(other)) {  // NOLINT
    if constexpr (owns) owner_ = other.owner();
  }
  template <class U, class... Q>
  View(const ::Kokkos::View<U, Q...>& other) : Base(other) {}  // NOLINT
  const auto& owner() const { return owner_; }

 private:
  template <class... N>
  static View made(const std::string& label, N... extents) {
    if constexpr (!is_on_device) {
      View view;
      static_cast<Base&>(view) = Base(label, extents...);
      return view;
    } else {
      using Element = std::remove_const_t<typename Base::value_type>;
      const std::size_t bytes = (extents * ... * sizeof(Element));
      void* const memory = allocate_behind_header(bytes);
      {
        const nanotron::emulation::DeviceAccess access;
        if (bytes > 0) std::memset(memory, 0, bytes);
      }
      View view(static_cast<Pointer>(memory), extents...);
      view.owner_ = std::shared_ptr<void>(
          memory, [](void* held) { free_with_header(held); }, nanotron::emulation::PinnedAllocator<std::byte>());
      return view;
    }
  }

  static constexpr bool owns = is_managed && is_on_device;
  [[no_unique_address]] std::conditional_t<owns, std::shared_ptr<void>, std::monostate> owner_;
};

template <class V>
using Mirror = View<typename V::Base::non_const_data_type, ::Kokkos::LayoutRight, ::Kokkos::HostSpace>;

template <class V>
Mirror<V> create_mirror(const V& view) {
  if constexpr (static_cast<int>(V::Base::Rank) == 1) {
    return Mirror<V>("mirror", view.extent(0));
  } else {
    return Mirror<V>("mirror", view.extent(0), view.extent(1));
  }
}
template <class V>
Mirror<V> create_mirror_view(const V& view) {
  return create_mirror(view);
}

// Copies -------------------------------------------------------------------------------------------

template <class To, class From>
void deep_copy(const Gpu& gpu, const To& to, const From& from) {
  using Element = std::remove_const_t<typename To::value_type>;
  if constexpr (std::is_arithmetic_v<From> || std::is_same_v<From, Element>) {
    Element* const data = to.data();
    const std::size_t size = to.size();
    nanotron::emulation::Scheduler::instance().launch_kernel(
        gpu.queue(), "fill", [data, size, from] { std::fill_n(data, size, static_cast<Element>(from)); });
  } else {
    static_assert(std::is_same_v<Element, std::remove_const_t<typename From::value_type>>);
    gpuMemcpyAsync(const_cast<Element*>(to.data()), from.data(), to.size() * sizeof(Element), gpuMemcpyDefault,
                   gpu.cuda_stream());
  }
}
template <class To, class From>
void deep_copy(const To& to, const From& from) {
  fence();
  EmulatedKokkos::deep_copy(Gpu(), to, from);
  fence();
}
template <class Space, class V>
auto create_mirror_view_and_copy(const Space&, const V& view) {
  static_assert(std::is_same_v<Space, ::Kokkos::HostSpace>);
  Mirror<V> mirror = create_mirror(view);
  EmulatedKokkos::deep_copy(mirror, view);
  return mirror;
}

template <class Space>
void* kokkos_malloc(const std::string&, std::size_t bytes) {
  return allocate_behind_header(bytes);
}
template <class Space>
void kokkos_free(void* memory) {
  free_with_header(memory);
}

// Kernels ------------------------------------------------------------------------------------------

template <class P>
inline constexpr bool has_64_bits = false;
template <class I>
inline constexpr bool has_64_bits<IndexType<I>> = sizeof(I) == 8;

template <class... P>
class RangePolicy {
 public:
  static_assert((has_64_bits<P> || ...), "Kokkos' own index type has 32 bits on a GPU: kernels::RangePolicy");
  static constexpr std::size_t besides_for = 48, besides_reduce = 88;
  RangePolicy(const Gpu& gpu, std::int64_t begin, std::int64_t end) : gpu_(gpu), begin_(begin), end_(end) {}
  RangePolicy(std::int64_t begin, std::int64_t end) : RangePolicy(Gpu(), begin, end) {}
  const Gpu& gpu() const { return gpu_; }
  auto on_cpu() const {
    return ::Kokkos::RangePolicy<::Kokkos::Serial, ::Kokkos::IndexType<std::int64_t>>(begin_, end_);
  }

 private:
  Gpu gpu_;
  std::int64_t begin_, end_;
};

template <class... P>
class TeamPolicy {
 public:
  static constexpr std::size_t besides_for = 152, besides_reduce = 200;
  using member_type = ::Kokkos::TeamPolicy<::Kokkos::Serial>::member_type;
  template <class Threads>
  TeamPolicy(const Gpu& gpu, int league, const Threads&) : gpu_(gpu), league_(league) {}
  const Gpu& gpu() const { return gpu_; }
  /// Of fast memory of a team.
  TeamPolicy& set_scratch_size(int level, const ::Kokkos::Impl::PerTeamValue& bytes) {
    level_ = level;
    scratch_ = bytes.value;
    return *this;
  }
  auto on_cpu() const {
    ::Kokkos::TeamPolicy<::Kokkos::Serial> policy(league_, 1);
    policy.set_scratch_size(level_, ::Kokkos::PerTeam(scratch_));
    return policy;
  }

 private:
  Gpu gpu_;
  int league_, level_ = 0;
  std::size_t scratch_ = 0;
};

template <class Policy>
concept on_gpu = requires(const Policy& policy) {
  { policy.gpu() } -> std::convertible_to<Gpu>;
};

using ::Kokkos::parallel_for;
using ::Kokkos::parallel_reduce;

// Kokkos launches a functor from 512 bytes on through constant memory, after a wait of the host for the kernel before.
// With it go its policy and more: `besides` bytes, measured in Kokkos 4.6.
template <std::size_t besides, class F>
void check_functor(const std::string& kernel, const F& f) {
  static_assert(sizeof(F) + besides < 512, "a closure too large for the arguments of a launch");
  nanotron::emulation::check_closure(kernel, f);
}

template <on_gpu Policy, class F>
void parallel_for(const std::string& label, const Policy& policy, const F& f) {
  check_functor<Policy::besides_for>(label, f);
  nanotron::emulation::Scheduler::instance().launch_kernel(
      policy.gpu().queue(), label + " " + typeid(F).name(),
      [cpu = policy.on_cpu(), f] { ::Kokkos::parallel_for(cpu, f); });
}

template <class Result>
concept a_view = requires(const Result& result) {
  result.data();
};

/// The result, in memory of the device, is there for what is queued afterwards.
template <on_gpu Policy, class F, a_view Result>
void parallel_reduce(const std::string& label, const Policy& policy, const F& f, const Result& result) {
  check_functor<Policy::besides_reduce>(label, f);
  nanotron::emulation::Scheduler::instance().launch_kernel(
      policy.gpu().queue(), label + " " + typeid(F).name(), [cpu = policy.on_cpu(), f, result] {
        ::Kokkos::parallel_reduce(cpu, f, static_cast<const typename Result::Base&>(result));
      });
}
/// The result, on the host, is there on return.
template <on_gpu Policy, class F, class Result>
requires(!a_view<Result>) void parallel_reduce(const std::string& label, const Policy& policy, const F& f,
                                               Result&& result) {
  check_functor<Policy::besides_reduce>(label, f);
  nanotron::emulation::Scheduler::instance().launch_kernel(policy.gpu().queue(), label + " " + typeid(F).name(), [&] {
    ::Kokkos::parallel_reduce(policy.on_cpu(), f, result);
  });
  policy.gpu().fence();
}

}  // namespace EmulatedKokkos

#define Kokkos EmulatedKokkos
