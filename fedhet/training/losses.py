"""Losses that several methods share."""

import torch.nn.functional as F
from torch import Tensor


def kl(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL(p_teacher || p_student) of softmax outputs, logits (B, C): summed over C, mean over B.

    The teacher is detached, so the gradient teaches the student alone.
    """
    return F.kl_div(
        F.log_softmax(student_logits, dim=1),
        F.log_softmax(teacher_logits.detach(), dim=1),
        reduction="batchmean",
        log_target=True,
    )
