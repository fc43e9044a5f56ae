"""The data sets by name, read from the folders that torchvision users already have. Nothing is downloaded.

| name | the folder holds | images | classes |
|---|---|---|---|
| digits | nothing: it comes with scikit-learn | 8x8x1 | 10 |
| mnist | MNIST/raw/train-images-idx3-ubyte[.gz], ... | 28x28x1 | 10 |
| fashion | FashionMNIST/raw/train-images-idx3-ubyte[.gz], ... | 28x28x1 | 10 |
| emnist | EMNIST/raw/emnist-balanced-train-images-idx3-ubyte[.gz], ... | 28x28x1 | 47 |
| cifar10 | cifar-10-batches-py/data_batch_1, ... | 32x32x3 | 10 |
| cifar100 | cifar-100-python/train, test | 32x32x3 | 100, the fine ones |
| svhn | [SVHN/]train_32x32.mat, [SVHN/]test_32x32.mat | 32x32x3 | 10 |

Each file of this folder is one data set and defines its SOURCE. To add a data set, add a file.
"""
