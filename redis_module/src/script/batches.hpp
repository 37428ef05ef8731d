// BATCHSIZE and MINBATCHSIZE: requests of one model that wait at the same time are computed as one minibatch.
#pragma once
#include <memory>

#include "jobs.hpp"
#include "script/request.hpp"

namespace batches {

// Lets the job wait beside others of its model where the model asks for that and the inputs have a first size to be
// joined by; else it goes its own way. What was computed together lies in work->outputs when the job computes.
void offer(Job& job, const std::shared_ptr<Work>& work);

// The model's key is gone, from whatever thread: nobody will fill its batches any more, so they begin.
void no_more(const std::shared_ptr<ModelState>& state);

}  // namespace batches
