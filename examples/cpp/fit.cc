// Fits a polynomial to a curve, saves every step, and goes on where it was after any kill. Usage: fit FOLDER STEPS
//
// Deterministic: however often it was killed, it ends with the same checksum.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "neve_handles.h"

namespace {

constexpr int kTerms = 12, kSamples = 64;

struct Model {
  std::vector<double> terms = std::vector<double>(kTerms), speed = std::vector<double>(kTerms), step = {0};

  double Train() {
    double loss = 0;
    std::vector<double> gradient(kTerms);
    for (int i = 0; i < kSamples; ++i) {
      const double x = std::fmod(i * 0.618033988749895 + step[0] * 0.1, 1.0);
      double found = 0, power = 1;
      for (double term : terms) {
        found += term * power;
        power *= x;
      }
      const double miss = found - std::cos(4 * x);
      loss += miss * miss / kSamples;
      power = 1;
      for (double& slope : gradient) {
        slope += 2 * miss * power / kSamples;
        power *= x;
      }
    }
    for (int k = 0; k < kTerms; ++k) terms[k] += speed[k] = 0.9 * speed[k] - 0.05 * gradient[k];
    step[0] += 1;
    return loss;
  }

  uint64_t Checksum() const {
    uint64_t sum = 1469598103934665603u;
    for (const std::vector<double>* part : {&terms, &speed, &step}) {
      for (double value : *part) {
        uint64_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        sum = (sum ^ bits) * 1099511628211u;
      }
    }
    return sum;
  }
};

void Run(const char* folder, double steps) {
  Model model;
  fit::Tensors tensors;
  tensors.Add("terms", &model.terms);
  tensors.Add("speed", &model.speed);
  tensors.Add("step", &model.step);
  tensors.Describe();
  fit::Checkpointer checkpointer(folder);
  if (checkpointer.Restore(tensors)) std::printf("restored step %.0f\n", model.step[0]);
  while (model.step[0] < steps) {
    const double loss = model.Train();
    const fit::Ticket ticket = checkpointer.Save(static_cast<uint64_t>(model.step[0]), tensors);
    std::printf("step %.0f loss %.6f\n", model.step[0], loss);
    std::fflush(stdout);
  }
  std::printf("checksum %016llx\n", static_cast<unsigned long long>(model.Checksum()));
  checkpointer.Close();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: fit FOLDER STEPS\n"), 2;
  try {
    Run(argv[1], std::atof(argv[2]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fit: %s\n", error.what());
    return 1;
  }
}
